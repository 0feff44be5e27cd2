import multiprocessing

from flask import Flask

app = Flask(__name__)


def build(name):
    context = multiprocessing.get_context("fork")
    context.Process(target=print, args=(name,)).start()  # expect: GL210
    context.Pool(2)  # expect: GL210


def rebuild(name):
    context = multiprocessing.get_context("fork")
    context.Process(target=print, args=(name,)).start()


class Builder:
    def build(self, name):
        multiprocessing.Process(target=print, args=(name,)).start()


def main():
    rebuild("all")


@app.get("/<name>")
def show(name):
    build(name)
    return "begun"
