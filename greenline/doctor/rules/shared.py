"""What requests share: connections that are made once, and entries by the id of a thread."""

import ast
import re
from collections.abc import Collection, Iterator

from greenline.doctor.codes import BY_THREAD_ID, MADE_BEFORE_FORK, SHARED_CONNECTION
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Function, Module, Scope, Site, last, walked
from greenline.doctor.rules.timeouts import SESSION, VERBS

# One connection, which one request uses at a time.
CONNECTIONS = {
    "psycopg2.connect", "psycopg.connect", "psycopg.Connection.connect", "MySQLdb.connect",
    "pymysql.connect", "mysql.connector.connect", "pymssql.connect", "pyodbc.connect",
    "oracledb.connect", "cx_Oracle.connect", "smtplib.SMTP", "smtplib.SMTP_SSL", "imaplib.IMAP4",
    "imaplib.IMAP4_SSL", "ftplib.FTP", "ldap.initialize", "paramiko.SSHClient",
    "socket.create_connection", "http.client.HTTPConnection", "http.client.HTTPSConnection",
    "sqlalchemy.create_engine().connect",
}  # fmt: skip
# They connect at their first use, which may be after a fork.
SESSIONS = {"sqlalchemy.orm.Session", "sqlalchemy.orm.sessionmaker()"}
# What has a socket, a thread or a process that a fork does not copy, or copies in a wrong state.
# The selector of an event loop is made with it, and stays unpatched.
UNFORKABLE = CONNECTIONS | {
    "pymongo.MongoClient", "pymongo.mongo_client.MongoClient", "threading.Thread().start",
    "threading.Timer().start", "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.Pool",
    "multiprocessing.pool.ThreadPool", "asyncio.new_event_loop", "grpc.insecure_channel",
    "grpc.secure_channel", "kafka.KafkaProducer", "kafka.KafkaConsumer", "confluent_kafka.Producer",
    "apscheduler.schedulers.background.BackgroundScheduler().start", "pika.BlockingConnection",
}  # fmt: skip
STARTS = ("threading.Thread().start", "threading.Timer().start")
SESSION_CALL = re.compile(rf"{SESSION}\.(?:{VERBS}|send)")
IDS = {
    "threading.get_ident", "threading.current_thread", "threading.current_thread().ident",
    "_thread.get_ident", "threading.get_native_id", "threading.current_thread().name",
    "threading.current_thread().getName",
}  # fmt: skip
CACHES = {"functools.cache", "functools.lru_cache", "functools.lru_cache()"}
KEYED = ("get", "setdefault", "__getitem__")
DELETES = ("pop", "discard", "remove")


def connections(module: Module, facts: Facts) -> Found:
    """Find connections that are made at import, or once for all requests."""
    kept = dict(_kept(module))
    for call in module.calls:
        # One of sqlite3 with that argument is meant for the threads of requests.
        is_shared = call.name in CONNECTIONS | SESSIONS or (
            call.name == "sqlite3.connect" and call.has("check_same_thread")
        )
        if not is_shared or call.node in module.blocks:
            continue
        if call.site.is_at_import:
            if not (facts.is_preloaded and call.name in UNFORKABLE):
                yield SHARED_CONNECTION, call.node, f"{call.name}() at import"
        elif call.site.is_command:
            continue
        elif call.node in kept:
            yield SHARED_CONNECTION, call.node, f"{call.name}() in {kept[call.node]}"
        elif not CACHES.isdisjoint(call.site.blocks):
            yield SHARED_CONNECTION, call.node, f"{call.name}() in a cached function"


def _kept(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Yield the values that functions assign to global names and to objects of the import."""
    made = {call.name for call in module.calls if call.site.is_at_import}
    for node, scope in module.scopes.items():
        if not isinstance(node, Function):
            continue
        is_of_one = node.name == "__init__" and _is_of_one_object(scope, made)
        statements = list(walked(node.body))
        names = {name for each in statements if isinstance(each, ast.Global) for name in each.names}
        for each in statements:
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                    yield value, "a global name"
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))], value=value):
                    if is_of_one:
                        yield value, "an object that is made at import"


def _is_of_one_object(scope: Scope, made: Collection[str]) -> bool:
    """Return whether the import makes an object of the class around *scope*."""
    owner = scope.owner.node if scope.owner else None
    # Each thread, here each greenlet, has an object of its own where the base is threading.local.
    if not isinstance(owner, ast.ClassDef) or any(last(each) == "local" for each in owner.bases):
        return False
    return f".{owner.name}" in made


def made_before_fork(module: Module, facts: Facts) -> Found:
    """Find connections, clients, threads, processes and loops that are made before the fork."""
    if not facts.is_preloaded:
        return
    threads = {f".{each.name}().start" for each in module.subclasses("threading.Thread")}
    for call in module.calls:
        name = "threading.Thread().start" if call.name in threads else call.name
        is_early = call.site.is_at_import or (
            name in STARTS and any(each.is_at_import for each in module.callers(call.site))
        )
        if not is_early or call.node in module.blocks:
            continue
        connect = call.given("connect")  # of a MongoClient, which then begins at its first use
        is_lazy = isinstance(connect, ast.Constant) and not connect.value
        if (name in UNFORKABLE and not is_lazy) or _is_used_session(call):
            yield MADE_BEFORE_FORK, call.node, f"{name}() at import"


def _is_used_session(call: Call) -> bool:
    """Return whether it is a request of a session that is kept, and keeps its connection."""
    is_kept = isinstance(getattr(call.node.func, "value", None), ast.Name)
    return bool(SESSION_CALL.fullmatch(call.name)) and is_kept and not call.site.blocks


def by_thread_id(module: Module, facts: Facts) -> Found:
    """Find mappings whose key is the id of the current thread."""
    if not {"threading", "_thread"} & module.imported:
        return
    # Where an entry is deleted it is no cache.
    ended = [node.value for node, _ in module.subscripts if isinstance(node.ctx, ast.Del)]
    keys: list[tuple[ast.expr, ast.expr, ast.expr, Site]] = [
        (node, node.value, node.slice, site) for node, site in module.subscripts
    ]
    for call in module.calls:
        match call.node:
            case ast.Call(func=ast.Attribute(value=mapping, attr=attr), args=[key, *_]):
                if attr in KEYED:
                    keys.append((call.node, mapping, key, call.site))
                elif attr in DELETES:
                    ended.append(mapping)
    for test, site in module.compares:
        match test:
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
                keys.append((test, mapping, key, site))
    known = set(map(ast.dump, ended))
    for node, mapping, key, site in sorted(keys, key=lambda each: each[0].lineno):
        name = module.name_of(key, site.scope).removesuffix("()")
        is_weak = module.name_of(mapping, site.scope) == "weakref.WeakKeyDictionary()"
        if name in IDS and not is_weak and ast.dump(mapping) not in known:
            known.add(ast.dump(mapping))  # one finding a mapping
            yield BY_THREAD_ID, node, f"{name} as a key"
