# facts: preload
import boto3
import redis
import requests
from pymongo import MongoClient

client = MongoClient("mongodb://localhost", timeoutMS=1000, connect=False)
cache = redis.Redis("localhost", socket_timeout=1)
session = requests.Session()
store = boto3.client("s3")


def application(environ, start_response):
    start_response("200 OK", [])
    return [cache.get("page")]
