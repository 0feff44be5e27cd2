"""What requests share: connections that are made at import, and entries by the id of a thread."""

import ast

from greenline.doctor.codes import BY_THREAD_ID, MADE_BEFORE_FORK, SHARED_CONNECTION
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Module, Site

# One connection, which one request uses at a time.
CONNECTIONS = {
    "psycopg2.connect", "psycopg.connect", "psycopg.Connection.connect", "MySQLdb.connect",
    "pymysql.connect", "mysql.connector.connect", "pymssql.connect", "pyodbc.connect",
    "oracledb.connect", "cx_Oracle.connect", "smtplib.SMTP", "smtplib.SMTP_SSL", "imaplib.IMAP4",
    "imaplib.IMAP4_SSL", "ftplib.FTP", "ldap.initialize", "paramiko.SSHClient",
    "socket.create_connection", "http.client.HTTPConnection", "http.client.HTTPSConnection",
}  # fmt: skip
# What has a socket, a thread or a lock that a fork does not copy, or copies in a wrong state.
UNFORKABLE = CONNECTIONS | {
    "pymongo.MongoClient", "pymongo.mongo_client.MongoClient", "threading.Thread().start",
    "threading.Timer().start", "concurrent.futures.ThreadPoolExecutor().submit",
    "concurrent.futures.ProcessPoolExecutor().submit", "multiprocessing.Pool",
    "multiprocessing.pool.ThreadPool", "grpc.insecure_channel", "grpc.secure_channel",
    "kafka.KafkaProducer", "kafka.KafkaConsumer", "confluent_kafka.Producer",
    "apscheduler.schedulers.background.BackgroundScheduler().start", "pika.BlockingConnection",
}  # fmt: skip
IDS = {
    "threading.get_ident", "threading.current_thread().ident", "_thread.get_ident",
    "threading.get_native_id", "threading.current_thread().name",
    "threading.current_thread().getName",
}  # fmt: skip
KEYED = ("get", "setdefault", "pop", "__getitem__")


def connections(module: Module, facts: Facts) -> Found:
    """Find connections that are made at import; before the fork, clients and threads as well."""
    for call in module.calls:
        if not call.site.is_at_import:
            continue
        if facts.is_preloaded and call.name in UNFORKABLE:
            yield MADE_BEFORE_FORK, call.node, f"{call.name}() at import"
        elif call.name in CONNECTIONS and not _is_in_with(module, call):
            yield SHARED_CONNECTION, call.node, f"{call.name}() at import"


def _is_in_with(module: Module, call: Call) -> bool:
    """Return whether a block ends the connection at import, too."""
    return any(
        call.node in [item.context_expr for item in each.items]
        for each in ast.walk(module.tree)
        if isinstance(each, ast.With)
    )


def by_thread_id(module: Module, facts: Facts) -> Found:
    """Find mappings whose key is the id of the current thread."""
    if not {"threading", "_thread"} & module.imported:
        return
    keys: list[tuple[ast.expr, ast.expr, Site]] = [
        (node, node.slice, site) for node, site in module.subscripts
    ]
    keys += [
        (call.node, call.node.args[0], call.site)
        for call in module.calls
        if call.node.args and getattr(call.node.func, "attr", "") in KEYED
    ]
    # Where the entry is deleted it is no cache.
    deleted = {
        ast.dump(node.value) for node, _ in module.subscripts if isinstance(node.ctx, ast.Del)
    }
    for node, key, site in keys:
        name = module.name_of(key, site.scope).removesuffix("()")
        mapping = node.func if isinstance(node, ast.Call) else node
        if name in IDS and ast.dump(getattr(mapping, "value", mapping)) not in deleted:
            yield BY_THREAD_ID, node, f"{name} as a key"
