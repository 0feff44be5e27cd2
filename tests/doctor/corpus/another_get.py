class Session:
    def get(self, url):
        return url


def fetch(url):
    return Session().get(url)
