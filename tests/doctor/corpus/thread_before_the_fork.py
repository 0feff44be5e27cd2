# facts: preload
import threading
import time

ticker = threading.Thread(target=time.sleep, args=(1,))
ticker.start()  # expect: GL204


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(ticker.is_alive()).encode()]
