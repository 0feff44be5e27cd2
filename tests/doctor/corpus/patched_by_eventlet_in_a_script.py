import os

import eventlet

if os.environ.get("EVENTLET"):
    eventlet.monkey_patch()  # not: GL219


def main():
    eventlet.monkey_patch()
