import redis
from pymongo import MongoClient

cache = redis.Redis("localhost")  # expect: GL213
client = MongoClient("mongodb://localhost")  # expect: GL213


def application(environ, start_response):
    start_response("200 OK", [])
    return [cache.get("page")]
