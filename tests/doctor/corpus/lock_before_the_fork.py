# facts: preload
import threading
import time

import requests

lock = threading.Lock()
reentrant = threading.RLock()
prices = {}


def price(item):
    with lock:  # not: GL204
        if item not in prices:
            prices[item] = requests.get(f"http://localhost/{item}", timeout=1).json()
    with lock:
        prices[item] += 1
    with reentrant:  # not: GL204
        time.sleep(0.1)
    with threading.Lock():
        return requests.get(f"http://localhost/{item}", timeout=1).json()
