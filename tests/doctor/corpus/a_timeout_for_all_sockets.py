import socket
from urllib.request import urlopen

socket.setdefaulttimeout(10)


def fetch(url):
    return urlopen(url).read()
