import smtplib
from urllib.request import urlopen

import redis
import requests
from pymongo import MongoClient

cache = redis.Redis("localhost", socket_timeout=2)
client = MongoClient("mongodb://localhost/?timeoutMS=5000")


def fetch(url):
    with smtplib.SMTP("localhost", timeout=3):
        return urlopen(url, None, 5).read(), requests.get(url, timeout=(1, 5)).text  # not: GL213
