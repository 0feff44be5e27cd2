try:
    import simplejson as json

    json.dumps(1)
except:
    import json


def application(environ, start_response):
    start_response("200 OK", [])
    return [json.dumps({}).encode()]
