from concurrent.futures import ProcessPoolExecutor


def application(environ, start_response):
    with ProcessPoolExecutor() as pool:  # expect: GL210
        list(pool.map(abs, [-1, 2]))
    start_response("200 OK", [])
    return []
