def application(environ, start_response):
    while environ["wsgi.input"].read(65536):
        pass
    start_response("200 OK", [])
    return []
