import ftplib
import imaplib
import poplib
import telnetlib
from xmlrpc.client import ServerProxy

import urllib3

http = urllib3.PoolManager(maxsize=4)


def fetch(url):
    imaplib.IMAP4("localhost", 143)  # expect: GL213
    poplib.POP3("localhost")  # expect: GL213
    poplib.POP3_SSL("localhost")  # expect: GL213
    ftplib.FTP("localhost")  # expect: GL213
    later = ftplib.FTP()
    later.connect("localhost")  # expect: GL213
    telnetlib.Telnet("localhost", 23)  # expect: GL213
    ServerProxy(url).price()  # expect: GL213
    urllib3.HTTPSConnectionPool("localhost").request("GET", "/")  # expect: GL213
    return http.request("GET", url).data  # expect: GL213
