# facts: preload
import requests

session = requests.Session()
session.get("http://localhost/settings", timeout=1)  # expect: GL204
requests.Session().get("http://localhost/settings", timeout=1)
with requests.Session() as short:
    short.get("http://localhost/settings", timeout=1)


def application(environ, start_response):
    start_response("200 OK", [])
    return [session.get("http://localhost", timeout=1).content]
