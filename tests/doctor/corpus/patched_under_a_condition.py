import os

import requests

if os.environ.get("STANDALONE"):
    from gevent.monkey import patch_all

    patch_all()


def fetch():
    return requests.get("http://127.0.0.1/", timeout=1)
