# facts: preload
from pymongo import MongoClient

client = MongoClient("mongodb://localhost", timeoutMS=1000)  # expect: GL204


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(client.shop.orders.count_documents({})).encode()]
