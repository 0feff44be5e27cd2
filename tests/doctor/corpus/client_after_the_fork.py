# facts: preload
from functools import cache

from pymongo import MongoClient


@cache
def client():
    return MongoClient("mongodb://localhost", timeoutMS=1000)  # not: GL204


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(client().shop.orders.count_documents({})).encode()]
