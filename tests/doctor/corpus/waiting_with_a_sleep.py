import time

state = {"is_ready": False}


def application(environ, start_response):
    while not state["is_ready"]:  # not: GL212
        time.sleep(0.01)
    start_response("200 OK", [])
    return []
