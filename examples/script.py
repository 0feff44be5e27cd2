"""
A plain script on Postgres and MongoDB: two hundred statements at once, within the budget.

With DATABASE_URL and MONGODB_URI in the environment, in the folder examples/, where the first
command installs greenline from this checkout:

    pip install '..[mongo]' psycopg2-binary
    python script.py
"""

from greenline.patch import patch_all

patch_all()  # before other imports: from here on what waits lets the others run

from concurrent.futures import ThreadPoolExecutor

from greenline import mongo, postgres
from greenline.hub import deadline

# One process has all of the budget; by default WEB_CONCURRENCY processes share it.
pg = postgres.open(workers=1)
client = mongo.open(workers=1)


def square(number):
    """Return the square of *number*, computed in Postgres in a tenth of a second."""
    text = "select %(number)s::int * %(number)s, pg_sleep(0.1)"
    return pg.fetch("square", text, {"number": number})[0][0]


# Threads are greenlets now. They wait for the connections of the pool in turn.
with ThreadPoolExecutor(200) as threads:
    squares = list(threads.map(square, range(200)))

with deadline.limit(10.0), client.database() as database:
    database.squares.replace_one({"_id": "sum"}, {"sum": sum(squares)}, upsert=True)
    print("sum:", database.squares.find_one({"_id": "sum"})["sum"])

print("at most", pg.plan.max_pool_size, "connections to Postgres")
