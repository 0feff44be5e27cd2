from contextlib import suppress


def application(environ, start_response):
    body = b""
    with suppress(BaseException):  # expect: GL211
        body = environ["wsgi.input"].read()
    with suppress(Exception):
        body += environ["wsgi.input"].read()
    with suppress(BaseException):
        body = body.decode().upper().encode()
    with environ["errors"].collected(BaseException):
        body = environ["wsgi.input"].read()
    start_response("200 OK", [])
    return [body]
