import redis
from pymongo import MongoClient

cache = redis.Redis("localhost")  # expect: GL213
pool = redis.ConnectionPool(host="localhost")  # expect: GL213
blocking = redis.BlockingConnectionPool.from_url(  # expect: GL213
    "redis://localhost", timeout=2
)
limited = redis.Redis(connection_pool=redis.ConnectionPool(socket_timeout=2))
client = MongoClient("mongodb://localhost")  # expect: GL213


def application(environ, start_response):
    start_response("200 OK", [])
    return [cache.get("page")]
