# facts: preload
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

pool = ThreadPoolExecutor(4)  # not: GL204
processes = ProcessPoolExecutor(2)  # expect: GL204
with ThreadPoolExecutor(4) as short:
    sizes = list(short.map(len, ["a", "bc"]))


def application(environ, start_response):
    start_response("200 OK", [])
    return [str(pool.submit(sum, sizes).result()).encode()]
