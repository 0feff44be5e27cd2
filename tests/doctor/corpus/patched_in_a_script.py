import requests
from gevent import monkey

if __name__ == "__main__":
    monkey.patch_all()
    print(requests.get("http://localhost", timeout=1).text)
