from requests import Session


class Client:
    def __init__(self):
        self.session = Session()

    def fetch(self, url):
        return self.session.get(url).json()  # expect: GL213
