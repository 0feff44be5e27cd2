import logging

logger = logging.getLogger(__name__)


def application(environ, start_response):
    body = b""
    try:
        body = environ["wsgi.input"].read()
    except BaseException as error:  # expect: GL211
        logger.exception("no body: %s", error)
    try:
        body += environ["wsgi.input"].read()
    except BaseException as error:  # expect: GL211
        print(f"no body: {error}")
    try:
        body += environ["wsgi.input"].read()
    except BaseException as error:
        logger.exception("no body: %s", error)
        environ["error"] = error
    start_response("200 OK", [])
    return [body]
