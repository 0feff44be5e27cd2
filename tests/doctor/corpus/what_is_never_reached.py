import requests


def picture(address):
    return "none"
    return requests.get(address).content  # not: GL213


def other(address):
    if not address:
        return "none"
    return requests.get(address).content  # expect: GL213
