"""Transactions that are open during something else, and what a pgbouncer does not keep."""

import ast
import re
from collections.abc import Iterator

from greenline.doctor.codes import HELD_ACROSS_CALL, SESSION_STATE, SLEEPS_IN_TRANSACTION
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Module
from greenline.doctor.rules.timeouts import SESSION, VERBS

# What begins a transaction, or checks a connection out, for the length of a block or a function.
TRANSACTION = re.compile(
    r"""
    django\.db\.transaction\.atomic (?:\(\))?
    | (?:psycopg2|psycopg|MySQLdb|pymysql)\.connect\(\) (?:\.transaction\(\))?
    | psycopg_pool\.ConnectionPool\(\)\.connection\(\)
    | (?:greenline\.)?sqlalchemy\.create_engine\(\)\.(?:begin|connect)\(\)
    | sqlalchemy\.orm\.(?:Session|sessionmaker\(\)|scoped_session\(\))\(\) (?:\.begin\(\))?
    | flask_sqlalchemy\.SQLAlchemy\(\)\.(?:session|engine)\.(?:begin|begin_nested|connect)\(\)
    """,
    re.VERBOSE,
)
SERVICES = re.compile(
    rf"""
    requests\.(?:api\.)?(?:{VERBS}) | {SESSION}\.(?:{VERBS}|send)
    | httpx\.(?:{VERBS}|stream) | httpx\.Client\(\)\.(?:{VERBS}|stream|send)
    | urllib\.request\.urlopen | urllib3\.PoolManager\(\)\.(?:request|urlopen)
    | smtplib\.SMTP(?:_SSL)?\(\)\.(?:send_message|sendmail)
    | django\.core\.mail\.(?:send_mail|send_mass_mail|mail_admins|mail_managers)
    | subprocess\.(?:run|call|check_call|check_output) | os\.system
    """,
    re.VERBOSE,
)
# A transaction without a block: from the first statement of a connection to its end.
OWN = r"(?:(?:psycopg2|psycopg|MySQLdb|pymysql)\.connect|psycopg2\.pool\.\w+\(\)\.getconn)\(\)"
BEGINS = re.compile(rf"{OWN}(?:\.cursor\(\))?\.(?:execute|executemany)")
ENDS = re.compile(rf"{OWN}\.(?:commit|rollback|close)")
SLEEPS = ("time.sleep", "gevent.sleep")
# In the text of a statement.
KEPT_BY_SESSION = re.compile(
    r"""
    ^\s* (?: set \s+ (?!local\b|transaction\b|constraints\b) \w
           | reset \s | listen \s | prepare \s+ (?!transaction\b) | create \s+ temp
           | declare \b .* \b with \s+ hold )
    | \b pg_(?:try_)?advisory_lock (?:_shared)? \s* \(
    | \b set_config \s* \( [^()]* , \s* false \s* \)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def held_across(module: Module, facts: Facts) -> Found:
    """Find calls to other services, and sleeps, inside of a transaction."""
    without_block = set(_between(module))
    for call in module.calls:
        if call.site.is_command:
            continue
        if call not in without_block and not any(map(TRANSACTION.fullmatch, call.site.blocks)):
            continue
        if SERVICES.fullmatch(call.name):
            yield HELD_ACROSS_CALL, call.node, f"{call.name}() in a transaction"
        elif call.name in SLEEPS:
            yield SLEEPS_IN_TRANSACTION, call.node, f"{call.name}() in a transaction"


def _between(module: Module) -> Iterator[Call]:
    """Yield the calls between a statement and the commit() after it, in one function."""
    if not any(BEGINS.fullmatch(call.name) for call in module.calls):
        return
    if "autocommit" in ast.dump(module.tree).lower():  # each statement may stand alone
        return
    begun: dict[ast.AST, list[Call]] = {}
    for call in module.calls:
        function = call.site.scope.function
        if function is None:
            continue
        if BEGINS.fullmatch(call.name):
            begun.setdefault(function, [])
        elif ENDS.fullmatch(call.name):
            between = begun.pop(function, [])
            yield from between if call.name.endswith(".commit") else []
        elif function in begun:
            begun[function].append(call)


def session_state(module: Module, facts: Facts) -> Found:
    """Find statements that set what belongs to a session, where a pgbouncer is in between."""
    if not facts.is_pooled_by_transaction:
        return
    for call in module.calls:
        method = getattr(call.node.func, "attr", "")
        if method == "set_session" and _sets_defaults(call):
            yield SESSION_STATE, call.node, "set_session() with autocommit"
        if method not in ("execute", "exec_driver_sql"):
            continue
        statement = _text(call)
        if match := KEPT_BY_SESSION.search(statement):
            yield SESSION_STATE, call.node, " ".join(match[0].split())


def _sets_defaults(call: Call) -> bool:
    """Return whether psycopg2 sets the session's defaults; else it names them in each BEGIN."""
    autocommit = call.given("autocommit", 3)
    given = len(call.node.args) + len(call.node.keywords)
    return isinstance(autocommit, ast.Constant) and bool(autocommit.value) and given > 1


def _text(call: Call) -> str:
    """Return the beginning of the statement, as far as it is a constant."""
    match call.node.args[:1]:
        case [ast.Constant(value=str(text))]:
            return text
        case [ast.JoinedStr(values=[ast.Constant(value=str(text)), *_])]:
            return text
        case [ast.Call(args=[ast.Constant(value=str(text)), *_])]:  # text(), SQL()
            return text
    return ""
