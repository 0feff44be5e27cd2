from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(4)


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(pool.submit(sum, [1, 2]).result()).encode()]
