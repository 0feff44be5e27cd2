"""
The libraries that ``bench.compatibility`` tries: how to open a client of each, and one call of it.

Functions named ``open_*`` take the server's address and return a client, with a pool of
``PLACES`` where the library has one. Those named ``ask_*`` take it and a word,
``wait-SECONDS-NUMBER``, which they send, so that the answer comes after that time. They return
the word as the answer has it, where it has one. A library is imported in its functions, because
each has an environment of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PLACES = 10
AT_ONCE = 20

Ask = Callable[[Any, str], object]


def _itself(address: str) -> Any:
    """Return the address: each call makes a client of its own."""
    return address


@dataclass(frozen=True)
class Library:
    """
    A library to try.

    :param name: its distribution, or the module where it is part of Python.
    :param modules: what is imported of it.
    :param source: the address of documentation about how it waits.
    :param server: a name of ``bench.compatibility_servers.SERVERS``; empty: it is not tried here.
    :param ask: one call of it.
    :param open: makes a client. Default: the address itself.
    :param start: imports an agent and starts it, once in a process; takes the address. Default
        None: it is no agent.
    :param requires: what pip installs. Default: *name*.
    :param at_once: calls at once while they are interrupted; fewer where a pool without a free
        place raises. Default 20.
    :param places: calls that can wait at once. Default 10.
    :param extension: the C module by which a worker sees that it is loaded, where it blocks.
    :param instead: what to do where it does not yield by itself.
    :param when: the dotted name of a call without which the record does not count.
    :param without: modules of it that do not wait in C.
    :param system: a function that returns variables for its install and for its run.
    :param computes: whether it keeps the processor and does not wait. Default False.
    :param verdict: what *source* says, where it is not tried.
    :param note: facts that the figures do not show.
    """

    name: str
    modules: tuple[str, ...]
    source: str
    server: str = ""
    ask: Ask | None = None
    open: Callable[[str], Any] = _itself
    start: Callable[[str], object] | None = field(default=None, kw_only=True)
    requires: tuple[str, ...] = ()
    at_once: int = AT_ONCE
    places: int = PLACES
    extension: str | None = None
    instead: str = ""
    when: str | None = None
    without: tuple[str, ...] = ()
    system: Callable[[], dict[str, str]] | None = None
    computes: bool = False
    verdict: str | None = None
    note: str = ""


def seconds(word: str) -> float:
    """Return the seconds that a word asks for."""
    return float(word.split("-")[1])


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port)


def _limit(word: str) -> float:
    # A deaf server cannot be told how long to wait: the library's own timeout ends the call.
    return max(1.0, seconds(word))


# ---- Postgres


def _postgres(address: str) -> str:
    return f"postgresql://greenline@{address}/greenline?sslmode=disable&gssencmode=disable"


def open_psycopg2(address: str) -> Any:
    import psycopg2.pool

    return psycopg2.pool.ThreadedConnectionPool(0, PLACES, _postgres(address))


def ask_psycopg2(pool: Any, word: str) -> object:
    conn, is_broken = pool.getconn(), True
    try:
        with conn.cursor() as cursor:
            cursor.execute("select %s", (word,))
            (found,) = cursor.fetchone()
        conn.rollback()
        is_broken = False
    finally:
        pool.putconn(conn, close=is_broken)
    return found


def open_psycopg(address: str) -> Any:
    from psycopg_pool import ConnectionPool

    return ConnectionPool(_postgres(address), min_size=0, max_size=PLACES, open=True)


def ask_psycopg(pool: Any, word: str) -> object:
    with pool.connection() as conn:
        return conn.execute("select %s::text", (word,)).fetchone()[0]


def ask_asyncpg(address: str, word: str) -> object:
    import asyncio

    import asyncpg

    async def main() -> object:
        url = f"postgresql://greenline@{address}/greenline"
        conn = await asyncpg.connect(url, ssl=False)
        try:
            return await conn.fetchval(f"select '{word}'")
        finally:
            await conn.close(timeout=5)

    return asyncio.run(main())


def ask_pg8000(address: str, word: str) -> object:
    import pg8000.dbapi

    host, port = _host_port(address)
    conn = pg8000.dbapi.connect("greenline", host=host, port=port, database="greenline")
    try:
        cursor = conn.cursor()
        cursor.execute(f"select '{word}'")
        return cursor.fetchone()[0]
    finally:
        conn.close()


def open_sqlalchemy(address: str) -> Any:
    import sqlalchemy

    url = _postgres(address).replace("postgresql:", "postgresql+psycopg2:")
    return sqlalchemy.create_engine(url, pool_size=PLACES, max_overflow=0)


def ask_sqlalchemy(engine: Any, word: str) -> object:
    import sqlalchemy

    with engine.connect() as conn:
        return conn.execute(sqlalchemy.text(f"select '{word}'")).scalar()


def open_peewee(address: str) -> Any:
    from playhouse.pool import PooledPostgresqlDatabase

    host, port = _host_port(address)
    return PooledPostgresqlDatabase(
        "greenline", max_connections=PLACES, timeout=30,
        user="greenline", host=host, port=port, sslmode="disable",
    )  # fmt: skip


def ask_peewee(database: Any, word: str) -> object:
    with database.connection_context():
        return database.execute_sql("select %s", (word,)).fetchone()[0]


# ---- MongoDB


def _mongo(address: str) -> str:
    return f"mongodb://{address}/?directConnection=true&maxPoolSize={PLACES}"


def _ask_collection(collection: Any, word: str) -> object:
    change = {"$set": {"seen": 1}}
    found = collection.find_one_and_update({"_id": word}, change, upsert=True, return_document=True)
    return found["_id"]


def open_pymongo(address: str) -> Any:
    import pymongo

    return pymongo.MongoClient(_mongo(address)).compatibility.words


def open_mongoengine(address: str) -> Any:
    import mongoengine

    mongoengine.connect("compatibility", host=_mongo(address))
    return mongoengine.connection.get_db().words


# ---- MySQL


def _selected(conn: Any, word: str) -> object:
    """Return what *conn* selects, and close it."""
    try:
        cursor = conn.cursor()
        cursor.execute("select %s", (word,))
        return cursor.fetchone()[0]
    finally:
        conn.close()


def ask_pymysql(address: str, word: str) -> object:
    import pymysql

    host, port = _host_port(address)
    with pymysql.connect(host=host, port=port, user="greenline") as conn, conn.cursor() as cursor:
        cursor.execute("select %s", (word,))
        return cursor.fetchone()[0]


def ask_mysqlclient(address: str, word: str) -> object:
    import MySQLdb

    host, port = _host_port(address)
    conn = MySQLdb.connect(host=host, port=port, user="greenline")
    return _selected(conn, word)


def ask_mysql_connector(address: str, word: str) -> object:
    import mysql.connector

    host, port = _host_port(address)
    given = {"host": host, "port": port, "user": "greenline", "ssl_disabled": True}
    conn = mysql.connector.connect(**given, use_pure=False)
    return _selected(conn, word)


def _mysql_connector_system() -> dict[str, str]:
    from sys import version_info

    from bench.hey_build import VAR

    # The C extension needs the OpenSSL of its wheel: where Python's ssl has loaded an older one
    # of the system before, it cannot be imported.
    folder = VAR / "compatibility" / "mysql-connector-python" / "lib"
    python = f"python{version_info.major}.{version_info.minor}"
    return {"LD_LIBRARY_PATH": str(folder / python / "site-packages" / "mysql" / "vendor")}


def _mysqlclient_system() -> dict[str, str]:
    from embedded import debian

    folder = debian.unpacked("libmariadb-dev")
    (library,) = folder.rglob("libmariadb.so.3")
    return {
        "MYSQLCLIENT_CFLAGS": f"-I{folder}/usr/include/mariadb",
        "MYSQLCLIENT_LDFLAGS": f"-L{library.parent} -lmariadb",
        "LD_LIBRARY_PATH": debian.environment(folder)["LD_LIBRARY_PATH"],
    }


def _pyodbc_system() -> dict[str, str]:
    from embedded import debian

    folders = [debian.unpacked(name) for name in ("odbc-postgresql", "libodbc2")]
    (driver,) = folders[0].rglob("psqlodbcw.so")
    libraries = [debian.environment(each)["LD_LIBRARY_PATH"] for each in folders]
    return {"LD_LIBRARY_PATH": ":".join(libraries), "PSQLODBC": str(driver)}


def ask_pyodbc(address: str, word: str) -> object:
    import os

    import pyodbc

    host, port = _host_port(address)
    conn = pyodbc.connect(
        f"Driver={os.environ['PSQLODBC']};Server={host};Port={port};Database=greenline;"
        "Uid=greenline;SSLmode=disable"
    )
    try:
        return conn.execute("select ?", word).fetchone()[0]
    finally:
        conn.close()


def open_redis(address: str) -> Any:
    import redis

    host, port = _host_port(address)
    pool = redis.BlockingConnectionPool(PLACES, timeout=30, host=host, port=port)
    return redis.Redis(connection_pool=pool)


def open_valkey(address: str) -> Any:
    import valkey

    host, port = _host_port(address)
    pool = valkey.BlockingConnectionPool(PLACES, timeout=30, host=host, port=port)
    return valkey.Valkey(connection_pool=pool)


def ask_redis(client: Any, word: str) -> object:
    return client.echo(word).decode()


def open_pymemcache(address: str) -> Any:
    from pymemcache.client.base import PooledClient

    return PooledClient(_host_port(address), max_pool_size=PLACES)


def ask_pymemcache(client: Any, word: str) -> object:
    key = word.rpartition("-")[2]
    client.set(key, word)
    return client.get(key).decode()


def open_pylibmc(address: str) -> Any:
    import pylibmc

    client = pylibmc.Client([address], behaviors={"_poll_timeout": 30_000})
    return pylibmc.ClientPool(client, PLACES)


def ask_pylibmc(pool: Any, word: str) -> object:
    with pool.reserve(block=True) as client:
        return ask_memcache(client, word)


def open_memcache(address: str) -> Any:
    import memcache

    return memcache.Client([address], socket_timeout=30)


def ask_memcache(client: Any, word: str) -> object:
    key = word.rpartition("-")[2]
    client.set(key, word)
    return client.get(key)


# ---- HTTP


def _url(address: str, word: str) -> str:
    return f"http://{address}/{word}"


def open_requests(address: str) -> Any:
    import requests

    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(1, PLACES, pool_block=True))
    return session, address


def ask_requests(client: Any, word: str) -> object:
    session, address = client
    return session.get(_url(address, word)).json()["word"]


def open_urllib3(address: str) -> Any:
    import urllib3

    return urllib3.PoolManager(maxsize=PLACES, block=True), address


def ask_urllib3(client: Any, word: str) -> object:
    manager, address = client
    return manager.request("GET", _url(address, word)).json()["word"]


def open_httpx(address: str) -> Any:
    import httpx

    limits = httpx.Limits(max_connections=PLACES)
    return httpx.Client(base_url=f"http://{address}", limits=limits, timeout=30)


def ask_httpx(client: Any, word: str) -> object:
    return client.get(f"/{word}").json()["word"]


def ask_httplib2(address: str, word: str) -> object:
    import json

    import httplib2

    _, body = httplib2.Http().request(_url(address, word))
    return json.loads(body)["word"]


def ask_aiohttp(address: str, word: str) -> object:
    import asyncio

    import aiohttp

    async def main() -> object:
        async with (
            aiohttp.ClientSession() as session,
            session.get(_url(address, word)) as response,
        ):
            return (await response.json())["word"]

    return asyncio.run(main())


def ask_pycurl(address: str, word: str) -> object:
    import io
    import json

    import pycurl

    written, curl = io.BytesIO(), pycurl.Curl()
    curl.setopt(pycurl.URL, _url(address, word))
    curl.setopt(pycurl.WRITEDATA, written)
    curl.perform()
    curl.close()
    return json.loads(written.getvalue())["word"]


def open_boto3(address: str) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        signature_version=UNSIGNED, max_pool_connections=PLACES, s3={"addressing_style": "path"}
    )
    return boto3.client(
        "s3", endpoint_url=f"http://{address}", region_name="eu-west-1", config=config
    )


def ask_boto3(client: Any, word: str) -> object:
    import json

    body = client.get_object(Bucket="books", Key=word)["Body"].read()
    return json.loads(body)["word"]


def open_google_storage(address: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="books", credentials=AnonymousCredentials(),
        client_options={"api_endpoint": f"http://{address}"},
    )  # fmt: skip
    return client.bucket("books")


def ask_google_storage(bucket: Any, word: str) -> object:
    return bucket.get_blob(word).name


def open_elasticsearch(address: str) -> Any:
    import elasticsearch

    return elasticsearch.Elasticsearch(
        f"http://{address}", connections_per_node=PLACES, request_timeout=30
    )


def open_opensearch(address: str) -> Any:
    import opensearchpy

    host, port = _host_port(address)
    return opensearchpy.OpenSearch([{"host": host, "port": port}], maxsize=PLACES, timeout=30)


def ask_search(client: Any, word: str) -> object:
    return client.get(index="books", id=word)["_id"]


def open_stripe(address: str) -> Any:
    import stripe

    return stripe.StripeClient("sk_test_x", base_addresses={"api": f"http://{address}"})


def ask_stripe(client: Any, word: str) -> object:
    customers = client.v1.customers if hasattr(client, "v1") else client.customers
    return customers.retrieve(word).id


def open_twilio(address: str) -> Any:
    from twilio.rest import Client

    return Client("AC" + "0" * 32, "token"), address


def ask_twilio(client: Any, word: str) -> object:
    import json

    twilio, address = client
    return json.loads(twilio.request("GET", _url(address, word)).text)["word"]


# ---- Queues


def ask_celery(address: str, word: str) -> object:
    app = _celery(address)
    app.send_task("tasks.work", task_id=word, ignore_result=True)
    return word


def _celery(address: str, apps: dict[str, Any] = {}) -> Any:  # noqa: B006 - one for all calls
    import celery

    if address not in apps:
        apps[address] = celery.Celery("tasks", broker=f"redis://{address}/0")
        apps[address].conf.broker_pool_limit = PLACES
    return apps[address]


def open_kombu(address: str) -> Any:
    import kombu
    import kombu.pools

    kombu.pools.set_limit(PLACES)
    return kombu.Connection(f"redis://{address}/0")


def ask_kombu(connection: Any, word: str) -> object:
    from kombu.pools import producers

    with producers[connection].acquire(block=True) as producer:
        producer.publish({}, routing_key="words", headers={"word": word})
    return word


def ask_nats(address: str, word: str) -> object:
    import asyncio

    import nats

    async def main() -> object:
        client = await nats.connect(f"nats://{address}")
        try:
            subscription = await client.subscribe("words")
            await client.publish("words", word.encode())
            return (await subscription.next_msg(timeout=30)).data.decode()
        finally:
            await client.close()

    return asyncio.run(main())


def ask_pika(address: str, word: str) -> object:
    import pika

    host, port = _host_port(address)
    limit_s = _limit(word)
    given = pika.ConnectionParameters(
        host, port, socket_timeout=limit_s, blocked_connection_timeout=limit_s,
        stack_timeout=limit_s, connection_attempts=1,
    )  # fmt: skip
    return pika.BlockingConnection(given)


def ask_confluent(address: str, word: str) -> object:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    return producer.list_topics(timeout=_limit(word))


def ask_kafka(address: str, word: str) -> object:
    from kafka import KafkaProducer

    limit_ms = int(_limit(word) * 1000)
    # With a version it does not ask the broker for one, so that the constructor does not wait.
    producer = KafkaProducer(
        bootstrap_servers=address, api_version=(2, 5), max_block_ms=limit_ms,
        request_timeout_ms=limit_ms,
    )  # fmt: skip
    try:
        return producer.send("words", word.encode())
    finally:
        producer.close(timeout=0)


# ---- Others


def ask_smtplib(address: str, word: str) -> object:
    import smtplib

    with smtplib.SMTP(*_host_port(address), local_hostname="localhost") as server:
        server.sendmail(f"a@{word}.test", ["b@localhost"], "Subject: x\r\n\r\nx")
    return word


def open_dnspython(address: str) -> Any:
    import dns.resolver

    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = [_host_port(address)[0]], _host_port(address)[1]
    return resolver


def ask_dnspython(resolver: Any, word: str) -> object:
    answer = resolver.resolve(f"{word}.test.", "A", lifetime=30)
    return str(answer.qname).partition(".test")[0]


def ask_ldap3(address: str, word: str) -> object:
    import ldap3

    host, port = _host_port(address)
    server = ldap3.Server(host, port=port, get_info=ldap3.NONE)
    with ldap3.Connection(server, auto_bind=True) as conn:
        conn.search("", f"(|(objectClass=*)(cn={word}))", ldap3.BASE)
        assert conn.entries
    return word


def _ldap_system() -> dict[str, str]:
    from embedded import debian

    folders = [debian.unpacked(name) for name in ("libldap-dev", "libsasl2-dev")]
    libraries = [each for folder in folders for each in _library_folders(folder)]
    return {
        "CFLAGS": " ".join(f"-I{folder}/usr/include" for folder in folders),
        "LDFLAGS": " ".join(f"-L{each}" for each in libraries),
    }


def ask_ldap(address: str, word: str) -> object:
    import ldap

    conn = ldap.initialize(f"ldap://{address}")
    try:
        conn.simple_bind_s()
        return word if conn.search_s("", ldap.SCOPE_BASE, f"(|(objectClass=*)(cn={word}))") else ""
    finally:
        conn.unbind_s()


def ask_zmq(address: str, word: str) -> object:
    import zmq

    client = zmq.Context.instance().socket(zmq.REQ)
    client.linger = 0
    client.rcvtimeo = int(_limit(word) * 1000)
    try:
        client.connect(f"tcp://{address}")
        client.send_string(word)
        return client.recv()
    finally:
        client.close()


def _library_folders(folder: Any) -> list[str]:
    return sorted({str(each.parent) for each in folder.rglob("lib*.so*")})


def ask_paramiko(address: str, word: str) -> object:
    import paramiko

    client = paramiko.SSHClient()
    host, port = _host_port(address)
    limit_s = _limit(word)
    return client.connect(host, port, "x", password="x", timeout=limit_s, banner_timeout=limit_s)  # noqa: S106


def ask_grpc(address: str, word: str) -> object:
    import grpc

    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary("/books.Books/Get")(b"", timeout=_limit(word))


def ask_pymssql(address: str, word: str) -> object:
    import pymssql

    host, port = _host_port(address)
    conn = pymssql.connect(host, "x", "x", port=str(port), tds_version="7.4")
    return _selected(conn, word)


def ask_oracledb(address: str, word: str) -> object:
    import oracledb

    return oracledb.connect(user="x", password="x", dsn=f"{address}/x")  # noqa: S106


def ask_cassandra(address: str, word: str) -> object:
    from cassandra.cluster import Cluster

    host, port = _host_port(address)
    limit_s = _limit(word)
    return Cluster([host], port=port, connect_timeout=limit_s).connect()


# ---- Agents


def start_sentry(address: str) -> None:
    import sentry_sdk

    sentry_sdk.init(f"http://key@{address}/1", auto_enabling_integrations=False)


def ask_sentry(_: str, word: str) -> object:
    import sentry_sdk

    sentry_sdk.capture_message(word)
    sentry_sdk.flush(timeout=_limit(word))
    return word


def start_opentelemetry(address: str) -> None:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"http://{address}/v1/traces", timeout=30)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def ask_opentelemetry(_: str, word: str) -> object:
    from opentelemetry import trace

    trace.get_tracer("compatibility").start_span(word).end()
    provider: Any = trace.get_tracer_provider()
    provider.force_flush()
    return word


def start_ddtrace(address: str) -> None:
    import os

    os.environ["DD_TRACE_AGENT_URL"] = f"http://{address}"
    os.environ["DD_TRACE_WRITER_INTERVAL_SECONDS"] = "0.1"
    import ddtrace.trace  # noqa: F401 - it starts the tracer


def start_ddtrace_auto(address: str) -> None:
    start_ddtrace(address)
    import ddtrace.auto  # noqa: F401 - it instruments the libraries


def ask_ddtrace(_: str, word: str) -> object:
    import time

    from ddtrace.trace import tracer

    with tracer.trace(word):
        pass
    time.sleep(_limit(word))  # a thread of its own sends meanwhile
    return word


def start_newrelic(address: str) -> None:
    import os

    host, port = _host_port(address)
    os.environ.update({
        "NEW_RELIC_HOST": host, "NEW_RELIC_PORT": str(port), "NEW_RELIC_LICENSE_KEY": "0" * 40,
        "NEW_RELIC_APP_NAME": "compatibility",
    })  # fmt: skip
    import newrelic.agent

    newrelic.agent.initialize()


def ask_newrelic(_: str, word: str) -> object:
    import newrelic.agent

    # By a name of its own: it waits for the first registration of each name alone.
    newrelic.agent.register_application(word, timeout=_limit(word))
    return word


# ---- What computes, for about a second


def ask_sqlite3(_: str, word: str) -> object:
    import sqlite3

    return _count_by(sqlite3.connect(":memory:"), word)


def ask_pysqlite3(_: str, word: str) -> object:
    import pysqlite3

    return _count_by(pysqlite3.connect(":memory:"), word)


def ask_apsw(_: str, word: str) -> object:
    import apsw

    return _count_by(apsw.Connection(":memory:"), word)


def _count_by(conn: Any, word: str) -> str:
    """Let a connection of sqlite count."""
    rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < ?)"
    limit = int(1 + 6_000_000 * seconds(word))
    conn.cursor().execute(f"{rows} select count(*) from n", (limit,)).fetchone()
    conn.close()
    return word


def ask_numpy(_: str, word: str) -> object:
    import numpy

    # Of integers, which no BLAS multiplies. A sort takes 0.2 to 1 s, by the processor's vectors.
    numbers = numpy.ones((int(1 + 1000 * seconds(word)),) * 2, int)
    numbers @ numbers
    return word


def ask_pandas(_: str, word: str) -> object:
    import numpy
    import pandas

    numbers = numpy.random.default_rng(1).random(int(1 + 1_000_000 * seconds(word)))
    pandas.Series(numbers).sort_values()
    return word


def ask_duckdb(_: str, word: str) -> object:
    import duckdb

    limit = int(1 + 15_000_000 * seconds(word))
    with duckdb.connect(config={"threads": 1}) as conn:
        conn.execute(f"select sum(sqrt(i) * sin(i)) from range({limit}) n(i)").fetchone()
    return word


def ask_pillow(_: str, word: str) -> object:
    from PIL import Image

    side = int(1 + 12_000 * seconds(word) ** 0.5)
    Image.new("L", (side, side)).resize((side // 2 + 1, side // 2 + 1), Image.LANCZOS)
    return word


def ask_argon2(_: str, word: str) -> object:
    import argon2

    cost = 60 if seconds(word) else 1
    argon2.PasswordHasher(time_cost=cost, memory_cost=2**16, parallelism=1).hash("x")
    return word


def ask_bcrypt(_: str, word: str) -> object:
    import bcrypt

    bcrypt.hashpw(b"x", bcrypt.gensalt(14 if seconds(word) else 4))
    return word


SHORT = "keep the calls short, or name them in GREENLINE_OFFLOAD"
SQLITE3 = "sqlite3 of the standard library, which the worker runs in threads"
LOCKED = "a transaction that is open while its view waits makes the next one fail: it waits in C"


LIBRARIES = (
    Library(
        "psycopg2", ("psycopg2",),
        "https://www.psycopg.org/docs/advanced.html#support-for-coroutine-libraries",
        "postgres", ask_psycopg2, open_psycopg2, ("psycopg2-binary",), at_once=PLACES,
        instead="in a script, call greenline.patch.hook_psycopg2() first",
        note="the worker sets the wait callback; the pool raises where no place is free",
    ),
    Library(
        "psycopg", ("psycopg",), "https://www.psycopg.org/psycopg3/docs/advanced/async.html",
        "postgres", ask_psycopg, open_psycopg, ("psycopg[binary]", "psycopg_pool"),
        instead="before 3.2, import it in the application, after patching",
    ),
    Library(
        "asyncpg", ("asyncpg",), "https://magicstack.github.io/asyncpg/current/",
        "postgres", ask_asyncpg, note="by asyncio.run()",
    ),
    Library(
        "pg8000", ("pg8000",), "https://github.com/tlocke/pg8000", "postgres", ask_pg8000,
    ),
    Library(
        "SQLAlchemy", ("sqlalchemy",), "https://docs.sqlalchemy.org/en/20/core/pooling.html",
        "postgres", ask_sqlalchemy, open_sqlalchemy, ("sqlalchemy", "psycopg2-binary"),
        note="with psycopg2: the driver decides",
    ),
    Library(
        "peewee", ("peewee", "playhouse"),
        "https://docs.peewee-orm.com/en/latest/peewee/database.html",
        "postgres", ask_peewee, open_peewee, ("peewee", "psycopg2-binary"),
        note="with psycopg2: the driver decides",
    ),
    Library(
        "pymongo", ("pymongo", "bson", "gridfs"),
        "https://www.mongodb.com/docs/languages/python/pymongo-driver/current/integrations/gevent/",
        "mongo", _ask_collection, open_pymongo,
    ),
    Library(
        "mongoengine", ("mongoengine",), "https://docs.mongoengine.org/guide/connecting.html",
        "mongo", _ask_collection, open_mongoengine,
    ),
    Library(
        "redis", ("redis",), "https://redis.readthedocs.io/en/stable/connections.html",
        "redis", ask_redis, open_redis,
    ),
    Library(
        "valkey", ("valkey",), "https://valkey-py.readthedocs.io/en/latest/connections.html",
        "redis", ask_redis, open_valkey,
    ),
    Library(
        "pymemcache", ("pymemcache",), "https://pymemcache.readthedocs.io/en/latest/",
        "memcached", ask_pymemcache, open_pymemcache, at_once=PLACES,
        note="the pool raises where no place is free",
    ),
    Library(
        "pylibmc", ("pylibmc",), "https://sendapatch.se/projects/pylibmc/pooling.html",
        "memcached", ask_pylibmc, open_pylibmc,
        note="it holds the server to be dead for a while after its poll_timeout of 5 s",
    ),
    Library(
        "python-memcached", ("memcache",), "https://github.com/linsomniac/python-memcached",
        "memcached", ask_memcache, open_memcache, instead="pymemcache",
        note="it holds the server to be dead for dead_retry seconds after a timeout",
    ),
    Library(
        "PyMySQL", ("pymysql",), "https://pymysql.readthedocs.io/en/latest/",
        "mariadb", ask_pymysql,
    ),
    Library(
        "mysqlclient", ("MySQLdb",), "https://github.com/PyMySQL/mysqlclient",
        "mariadb", ask_mysqlclient, system=_mysqlclient_system,
    ),
    Library(
        "mysql-connector-python", ("mysql",),
        "https://dev.mysql.com/doc/connector-python/en/connector-python-cext.html",
        "mariadb", ask_mysql_connector, system=_mysql_connector_system,
    ),
    Library(
        "pyodbc", ("pyodbc",), "https://github.com/mkleehammer/pyodbc/wiki",
        "postgres", ask_pyodbc, system=_pyodbc_system, note="with psqlODBC",
    ),
    Library(
        "pymssql", ("pymssql",), "https://pymssql.readthedocs.io/en/latest/ref/pymssql.html",
        "tds", ask_pymssql,
    ),
    Library(
        "oracledb", ("oracledb",),
        "https://python-oracledb.readthedocs.io/en/latest/user_guide/initialization.html",
        "deaf", ask_oracledb, note="in thin mode",
    ),
    Library(
        "oracledb", ("oracledb",),
        "https://python-oracledb.readthedocs.io/en/latest/user_guide/initialization.html",
        verdict="blocks the hub", when="oracledb.init_oracle_client",
        instead="do without oracledb.init_oracle_client()",
        note="in thick mode; Oracle's client library cannot be fetched here",
    ),
    Library(
        "cx_Oracle", ("cx_Oracle",), "https://cx-oracle.readthedocs.io/en/latest/",
        verdict="blocks the hub", extension="cx_Oracle", instead="oracledb in thin mode",
        note="Oracle's client library cannot be fetched here",
    ),
    Library(
        "ibm_db", ("ibm_db",), "https://github.com/ibmdb/python-ibmdb",
        verdict="blocks the hub", extension="ibm_db",
        instead="a process or gevent's thread pool", note="there is no server for it here",
    ),
    Library(
        "cassandra-driver", ("cassandra",),
        "https://docs.datastax.com/en/developer/python-driver/latest/api/cassandra/io/geventreactor/",
        "deaf", ask_cassandra,
    ),
    Library(
        "elasticsearch", ("elasticsearch",),
        "https://elasticsearch-py.readthedocs.io/en/latest/",
        "http", ask_search, open_elasticsearch,
    ),
    Library(
        "opensearch-py", ("opensearchpy",), "https://github.com/opensearch-project/opensearch-py",
        "http", ask_search, open_opensearch,
    ),
    Library(
        "requests", ("requests",), "https://requests.readthedocs.io/en/latest/user/advanced/",
        "http", ask_requests, open_requests,
    ),
    Library(
        "urllib3", ("urllib3",), "https://urllib3.readthedocs.io/en/stable/advanced-usage.html",
        "http", ask_urllib3, open_urllib3,
    ),
    Library("httpx", ("httpx",), "https://www.python-httpx.org/advanced/resource-limits/",
            "http", ask_httpx, open_httpx, when="httpx.Client"),
    Library("httplib2", ("httplib2",), "https://httplib2.readthedocs.io/en/latest/",
            "http", ask_httplib2),
    Library("aiohttp", ("aiohttp",), "https://docs.aiohttp.org/en/stable/client.html",
            "http", ask_aiohttp, note="by asyncio.run()"),
    Library("pycurl", ("pycurl",), "http://pycurl.io/docs/latest/index.html",
            "http", ask_pycurl),
    Library(
        "boto3", ("boto3", "botocore"),
        "https://docs.aws.amazon.com/boto3/latest/guide/clients.html",
        "http", ask_boto3, open_boto3,
    ),
    Library(
        "google-cloud-storage", ("google.cloud.storage",),
        "https://docs.cloud.google.com/python/docs/reference/storage/latest",
        "http", ask_google_storage, open_google_storage,
    ),
    Library("stripe", ("stripe",), "https://github.com/stripe/stripe-python",
            "http", ask_stripe, open_stripe),
    Library("twilio", ("twilio",), "https://github.com/twilio/twilio-python",
            "http", ask_twilio, open_twilio),
    Library(
        "grpcio", ("grpc",), "https://grpc.github.io/grpc/python/grpc.html",
        "deaf", ask_grpc,
    ),
    Library("pika", ("pika",), "https://pika.readthedocs.io/en/stable/modules/adapters/blocking.html",
            "deaf", ask_pika),
    Library(
        "kombu", ("kombu",), "https://docs.celeryq.dev/projects/kombu/en/stable/userguide/pools.html",
        "redis", ask_kombu, open_kombu, ("kombu", "redis"), note="with redis",
    ),
    Library(
        "celery", ("celery",), "https://docs.celeryq.dev/en/stable/userguide/calling.html",
        "redis", ask_celery, requires=("celery", "redis"), note="delay(), with redis",
    ),
    Library(
        "confluent-kafka", ("confluent_kafka",),
        "https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html",
        "deaf", ask_confluent, without=("confluent_kafka.schema_registry",),
    ),
    Library(
        "kafka-python", ("kafka",),
        "https://kafka-python.readthedocs.io/en/master/apidoc/KafkaProducer.html",
        "deaf", ask_kafka,
    ),
    Library("nats-py", ("nats",), "https://nats-io.github.io/nats.py/", "nats", ask_nats,
            note="by asyncio.run()"),
    Library("smtplib", ("smtplib",), "https://docs.python.org/3/library/smtplib.html",
            "smtp", ask_smtplib),
    Library("dnspython", ("dns",), "https://dnspython.readthedocs.io/en/latest/",
            "dns", ask_dnspython, open_dnspython),
    Library("ldap3", ("ldap3",), "https://ldap3.readthedocs.io/en/latest/", "slapd", ask_ldap3),
    Library(
        "python-ldap", ("ldap",), "https://www.python-ldap.org/en/latest/",
        "slapd", ask_ldap, system=_ldap_system,
        without=("ldap.dn", "ldap.filter", "ldap.modlist"),
    ),
    Library("paramiko", ("paramiko",), "https://docs.paramiko.org/en/stable/api/client.html",
            "deaf", ask_paramiko),
    Library(
        "pyzmq", ("zmq",), "https://pyzmq.readthedocs.io/en/latest/api/zmq.html",
        "deaf", ask_zmq,
    ),
    Library(
        "sentry-sdk", ("sentry_sdk",), "https://docs.sentry.io/platforms/python/",
        "deaf", ask_sentry, start=start_sentry,
    ),
    Library(
        "opentelemetry-sdk", ("opentelemetry.sdk", "opentelemetry.exporter"),
        "https://opentelemetry-python.readthedocs.io/en/latest/examples/fork-process-model/README.html",
        "http", ask_opentelemetry, start=start_opentelemetry, places=1,
        requires=("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
        note="force_flush() of a BatchSpanProcessor, with the exporter over HTTP",
    ),
    Library(
        "ddtrace", ("ddtrace",),
        "https://docs.datadoghq.com/tracing/trace_collection/compatibility/python/",
        "deaf", ask_ddtrace, start=start_ddtrace,
        note="a thread of its own sends; tracer.flush() blocks the hub, for 23 s where no agent "
        "answers",
    ),
    Library(
        "ddtrace.auto", ("ddtrace.auto",),
        "https://github.com/DataDog/dd-trace-py/releases/tag/v1.9.3",
        "deaf", ask_ddtrace, requires=("ddtrace",), start=start_ddtrace_auto,
        instead="import it on the first line of gunicorn.conf.py, or start by ddtrace-run",
        note="it unloads time and threading, and what imports them afterwards is not patched",
    ),
    Library(
        "newrelic", ("newrelic",), "https://docs.newrelic.com/docs/apm/agents/python-agent/",
        "deaf", ask_newrelic, start=start_newrelic,
        note="initialize() in gunicorn.conf.py is the same; what register_application() registers "
        "there sends nothing from the workers, which it logs",
    ),
    Library("sqlite3", ("sqlite3",), "https://docs.python.org/3/library/sqlite3.html",
            "computing", ask_sqlite3, note="the worker runs it in threads"),
    Library("pysqlite3", ("pysqlite3",), "https://github.com/coleifer/pysqlite3",
            "computing", ask_pysqlite3, requires=("pysqlite3-binary",), instead=SQLITE3,
            note=LOCKED),
    Library("apsw", ("apsw",), "https://rogerbinns.github.io/apsw/tips.html",
            "computing", ask_apsw, instead=SQLITE3, note=LOCKED),
    Library("numpy", ("numpy",), "https://numpy.org/doc/stable/reference/thread_safety.html",
            "computing", ask_numpy, computes=True, instead=SHORT),
    Library("pandas", ("pandas",), "https://pandas.pydata.org/docs/user_guide/gotchas.html",
            "computing", ask_pandas, computes=True, instead=SHORT),
    Library("duckdb", ("duckdb",), "https://duckdb.org/docs/stable/clients/python/overview",
            "computing", ask_duckdb, computes=True, instead=SHORT),
    Library("pillow", ("PIL",), "https://pillow.readthedocs.io/en/stable/",
            "computing", ask_pillow, note="the worker runs it in threads"),
    Library("bcrypt", ("bcrypt",), "https://github.com/pyca/bcrypt",
            "computing", ask_bcrypt, note="the worker runs it in threads"),
    Library("argon2-cffi", ("argon2",), "https://argon2-cffi.readthedocs.io/en/stable/",
            "computing", ask_argon2, note="the worker runs it in threads"),
)  # fmt: skip
BY_NAME = {each.name: each for each in reversed(LIBRARIES)}
