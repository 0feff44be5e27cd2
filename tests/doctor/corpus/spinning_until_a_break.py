state = {"is_ready": False}
is_ready = False


def application(environ, start_response):
    while True:  # expect: GL212
        if state["is_ready"]:
            break
    turns = 0
    while not is_ready:  # expect: GL212
        turns += 1
    while True:  # expect: GL212
        turns += 1
        if is_ready:
            start_response("200 OK", [])
            return [str(turns).encode()]


def awaited(ready):
    while True:  # expect: GL212
        if not ready.is_set():
            pass
        elif is_ready:
            raise RuntimeError(str(ready))
