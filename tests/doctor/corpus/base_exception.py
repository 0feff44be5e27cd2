def application(environ, start_response):
    try:
        body = environ["wsgi.input"].read()
    except BaseException:  # expect: GL211
        body = b""
    start_response("200 OK", [])
    return [body]
