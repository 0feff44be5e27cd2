"""Transactions that are open during something else, and what a pgbouncer does not keep."""

import ast
import re
from collections.abc import Iterator

from greenline.doctor.codes import HELD_ACROSS_CALL, SESSION_STATE, SLEEPS_IN_TRANSACTION
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Function, Module, Scope
from greenline.doctor.rules.processes import is_view
from greenline.doctor.rules.timeouts import SESSION, VERBS

# A file that makes no `db` of Flask-SQLAlchemy imports it by this name.
SESSION_OF_FLASK = r"(?:flask_sqlalchemy\.SQLAlchemy\(\)|(?:[\w.]+\.)?db)\.session"
# What begins a transaction, or checks a connection out, for the length of a block or a function.
TRANSACTION = re.compile(
    rf"""
    django\.db\.transaction\.atomic (?:\(\))?
    | (?:psycopg2|psycopg|MySQLdb|pymysql)\.connect\(\) (?:\.transaction\(\))?
    | psycopg_pool\.ConnectionPool\(\)\.connection\(\)
    | (?:greenline\.)?sqlalchemy\.create_engine\(\)\.(?:begin|connect)\(\)
    | sqlalchemy\.orm\.(?:Session|sessionmaker\(\)|scoped_session\(\))\(\) (?:\.begin\(\))?
    | {SESSION_OF_FLASK}\.(?:begin|begin_nested)\(\)
    | flask_sqlalchemy\.SQLAlchemy\(\)\.engine\.(?:begin|connect)\(\)
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
    # What only makes an object or signs a URL sends nothing.
    | boto3\.(?:client|resource)\(\)(?:\.\w+\(\))*
      \.(?!can_|close|generate_|get_paginator|get_waiter|[A-Z])\w+
    | stripe\.(?:\w+\.)*\w+\.(?:cancel|capture|confirm|create|delete|list|modify|retrieve|search)
    | subprocess\.(?:run|call|check_call|check_output) | os\.system
    """,
    re.VERBOSE,
)
# A transaction without a block: from the first statement of a connection to its end.
OWN = r"(?:(?:psycopg2|psycopg|MySQLdb|pymysql)\.connect|psycopg2\.pool\.\w+\(\)\.getconn)\(\)"
ORM = (
    r"sqlalchemy\.orm\.(?:(?:Session|sessionmaker\(\)|scoped_session\(\))\(\)|scoped_session\(\))"
    rf"|{SESSION_OF_FLASK}"
)
# Not add(), which sends nothing.
BEGINS = re.compile(
    rf"{OWN}(?:\.cursor\(\))?\.(?:execute|executemany)"
    rf"|(?:{ORM})\.(?:execute|flush|get|get_one|merge|query|refresh|scalars?)"
)
ENDS = re.compile(
    rf"(?:{OWN}|{ORM})\.(?:commit|rollback|close|remove)|psycopg2\.pool\.\w+\(\)\.putconn"
)
NO_AUTOCOMMIT = "keyword(arg='autocommit', value=constant(value=false))"
LEAVES = (ast.Return, ast.Raise, ast.Continue)
ATOMIC_REQUESTS = re.compile(r"'ATOMIC_REQUESTS'(?:: |\] = )True")
NOT_ATOMIC = {"django.db.transaction.non_atomic_requests"}
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
        if not _waits(call) or call.site.is_command:
            continue
        if (
            call not in without_block
            and not any(map(TRANSACTION.fullmatch, call.site.blocks))
            and not (facts.has_atomic_requests and _is_of_a_view(module, call))
        ):
            continue
        code = SLEEPS_IN_TRANSACTION if call.name in SLEEPS else HELD_ACROSS_CALL
        yield code, call.node, f"{call.name}() in a transaction"


def _waits(call: Call) -> bool:
    return call.name in SLEEPS or bool(SERVICES.fullmatch(call.name))


def has_atomic_requests(module: Module) -> bool:
    """Return whether it has settings of Django that make each view a transaction."""
    is_settings = module.scopes[module.tree].has("DATABASES")
    return is_settings and bool(ATOMIC_REQUESTS.search(ast.unparse(module.tree)))


def _is_of_a_view(module: Module, call: Call) -> bool:
    """Return whether a view of Django's, or a function that it calls, makes the call."""
    sites = [call.site, *module.callers(call.site)]
    return any(is_view(each) and NOT_ATOMIC.isdisjoint(each.blocks) for each in sites)


def _between(module: Module) -> Iterator[Call]:
    """Yield what waits between a statement and a commit() or putconn(), in one function."""
    if not any(BEGINS.fullmatch(call.name) for call in module.calls):
        return
    # Each statement may stand alone.
    if "autocommit" in ast.dump(module.tree).lower().replace(NO_AUTOCOMMIT, ""):
        return
    made: dict[Scope, list[Call]] = {}
    for call in module.calls:
        is_of_transactions = BEGINS.fullmatch(call.name) or ENDS.fullmatch(call.name)
        if isinstance(call.site.scope.node, Function) and (is_of_transactions or _waits(call)):
            made.setdefault(call.site.scope, []).append(call)
    for calls in made.values():
        for at, call in enumerate(calls):
            if not _waits(call):
                continue
            before = [
                each.name for each in calls[:at] if not _waits(each) and _may_precede(each, call)
            ]
            is_committed = any(
                each.name.endswith((".commit", ".putconn")) and _may_precede(call, each)
                for each in calls[at:]
            )
            if before and BEGINS.fullmatch(before[-1]) and is_committed:
                yield call


def _may_precede(first: Call, second: Call) -> bool:
    """Return whether one run of a function may make both calls: no branch is in between."""
    line = second.node.lineno
    for node in ast.walk(second.site.scope.node):
        for suite in (getattr(node, name, None) for name in ("body", "orelse")):
            if not isinstance(suite, list) or not suite:  # of an expression
                continue
            end = suite[-1].end_lineno
            if not suite[0].lineno <= first.node.lineno <= end < line:
                continue
            is_else = isinstance(node, ast.If) and line <= (node.end_lineno or 0)
            if is_else or isinstance(suite[-1], LEAVES):
                return False
    return True


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
