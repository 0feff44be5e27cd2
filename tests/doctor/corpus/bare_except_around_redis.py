import redis

cache = redis.Redis("localhost", socket_timeout=1)


def price(item):
    try:
        return cache.get(item)
    except:  # expect: GL211
        return None


def close():
    try:
        cache.close()
    except:
        pass


def known(prices, item):
    try:
        return prices.get(item)
    except:
        return None
