import logging


def application(environ, start_response):
    try:
        body = environ["wsgi.input"].read()
    except:  # not: GL211
        logging.exception("not read")
        raise
    start_response("200 OK", [])
    return [body]


class Preferences(Resource):
    def get(self, connection):
        try:
            return connection.read()
        except:  # not: GL211
            self.abort(500, "not read")
