"""../script.py with two mistakes, which ``greenline doctor`` finds."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from greenline.patch import patch_all

patch_all()  # expect: GL207

loop = asyncio.new_event_loop()


def square(number):
    return loop.run_until_complete(asyncio.sleep(0.1, number * number))  # expect: GL201


with ThreadPoolExecutor(200) as threads:
    print("sum:", sum(threads.map(square, range(200))))
