from smtplib import SMTP

MAIL = SMTP("localhost", timeout=5)  # expect: GL203


def application(environ, start_response):
    MAIL.sendmail("a@example.org", ["b@example.org"], "hello")
    start_response("204 No Content", [])
    return []
