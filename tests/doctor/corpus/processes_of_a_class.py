import os
from multiprocessing import Process

from flask.views import MethodView


class Report(MethodView):
    def get(self):
        Process(target=print).start()  # expect: GL210
        return "begun"

    def build(self):
        Process(target=print).start()


class Queue:
    def get(self):
        return os.fork()
