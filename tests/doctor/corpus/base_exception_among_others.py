def application(environ, start_response):
    try:
        body = environ["wsgi.input"].read()
    except (OSError, BaseException):  # expect: GL211
        body = b""
    try:
        body += environ["wsgi.input"].read()
    except (OSError, ValueError):
        pass
    start_response("200 OK", [])
    return [body]
