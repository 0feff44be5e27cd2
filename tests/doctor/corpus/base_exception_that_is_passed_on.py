import sys


def run(work, done):
    try:
        done.set_result(work())
    except BaseException:
        done.set_exc_info(sys.exc_info())
