import threading

names = {}


def handle(request):
    names[threading.get_ident()] = request.path
    try:
        return names.get(threading.get_ident())
    finally:
        del names[threading.get_ident()]
