import ftplib
import imaplib
import poplib
import telnetlib
from xmlrpc.client import ServerProxy

import urllib3

from app.transports import TimeoutTransport

http = urllib3.PoolManager(timeout=3)


def fetch(url):
    imaplib.IMAP4("localhost", 143, 5)
    poplib.POP3("localhost", 110, 5)
    poplib.POP3_SSL("localhost", timeout=5)
    ftplib.FTP("localhost", "me", "secret", "", 5)
    later = ftplib.FTP()
    later.connect("localhost", 21, 5)
    telnetlib.Telnet("localhost", 23, 5)
    ServerProxy(url, TimeoutTransport()).price()
    ServerProxy(url, transport=TimeoutTransport()).price()
    urllib3.request("GET", url)
    return http.request("GET", url).data
