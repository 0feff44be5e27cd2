# facts: redis 8
import redis

cache = redis.Redis("localhost")
other = redis.from_url("redis://localhost")
