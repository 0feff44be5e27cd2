import urllib3

http = urllib3.HTTPConnectionPool("localhost")


def fetch(path):
    return http.request("GET", path, timeout=3).data
