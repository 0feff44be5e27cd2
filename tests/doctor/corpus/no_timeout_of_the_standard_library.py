import smtplib
from urllib.request import urlopen, urlretrieve


def fetch(url):
    return urlopen(url).read()  # expect: GL213


def save(url, path):
    urlretrieve(url, path)  # expect: GL213


def send(text):
    with smtplib.SMTP("localhost") as mail:  # expect: GL213
        mail.sendmail("a@example.org", "b@example.org", text)
