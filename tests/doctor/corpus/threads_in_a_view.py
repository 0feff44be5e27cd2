from concurrent.futures import ThreadPoolExecutor

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    with ThreadPoolExecutor() as pool:
        return str(list(pool.map(abs, [-1, 2])))
