from multiprocessing import Pool

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    with Pool(2) as pool:  # expect: GL210
        return str(pool.map(abs, [-1, 2]))
