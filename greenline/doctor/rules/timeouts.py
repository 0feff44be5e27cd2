"""Calls to other services that wait for ever."""

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from greenline.doctor.codes import NO_TIMEOUT
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module


class Limited(NamedTuple):
    """
    Describe a call that may have a timeout.

    :param names: what is called, a pattern.
    :param keywords: the arguments that limit it, one of which is enough.
    :param position: the position of the first of them; None if it has none.
    :param is_by_socket: ``socket.setdefaulttimeout()`` limits it too, bool.
    """

    names: re.Pattern[str]
    keywords: tuple[str, ...] = ("timeout",)
    position: int | None = None
    is_by_socket: bool = False


VERBS = "get|post|put|patch|delete|head|options|request"
SESSION = r"requests\.(?:sessions\.)?[Ss]ession\(\)"
URLLIB3 = (
    r"urllib3\.(?:(?:poolmanager\.)?(?:PoolManager|ProxyManager)|"
    r"(?:connectionpool\.)?HTTPS?ConnectionPool)\(\)"
)
REDIS_POOL = r"redis\.(?:connection\.)?(?:Blocking)?ConnectionPool"
LIMITED = tuple(
    Limited(re.compile(pattern), *more)
    for pattern, *more in (
        (rf"requests\.(?:api\.)?(?:{VERBS})",),
        (rf"{SESSION}\.(?:{VERBS}|send)",),
        (r"urllib\.request\.urlopen", ("timeout",), 2, True),
        (r"urllib\.request\.urlretrieve", ("timeout",), None, True),  # it can have none of its own
        (r"smtplib\.SMTP(?:_SSL)?", ("timeout",), None, True),
        (r"ftplib\.FTP", ("timeout",), 4, True),
        (r"ftplib\.FTP_TLS", ("timeout",), None, True),
        (r"ftplib\.FTP(?:_TLS)?\(\)\.connect", ("timeout",), 2, True),
        (r"imaplib\.IMAP4|poplib\.POP3|telnetlib\.Telnet", ("timeout",), 2, True),
        (r"imaplib\.IMAP4_SSL|poplib\.POP3_SSL", ("timeout",), None, True),
        # It has no timeout of its own; a transport may have one.
        (r"xmlrpc\.client\.ServerProxy", ("timeout", "transport"), 1, True),
        (rf"{URLLIB3}\.(?:request|urlopen)", ("timeout",), None, True),
        (r"http\.client\.HTTPS?Connection", ("timeout",), 2, True),
        (r"socket\.create_connection", ("timeout",), 1, True),
        (r"redis\.(?:client\.)?(?:Strict)?Redis", ("socket_timeout", "connection_pool")),
        (r"redis\.(?:(?:client\.)?(?:Strict)?Redis\.)?from_url", ("socket_timeout",)),
        (rf"{REDIS_POOL}(?:\.from_url)?", ("socket_timeout",)),
        (r"pymongo\.(?:mongo_client\.)?MongoClient", ("timeoutMS", "socketTimeoutMS")),
    )
)  # fmt: skip
DJANGO_MAIL = re.compile(
    r"django\.core\.mail\.(?:send_mail|send_mass_mail|mail_admins|mail_managers"
    r"|(?:message\.)?Email(?:Message|MultiAlternatives)\(\)\.send)"
)
SMTP_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
SESSIONS = ("requests.Session", "requests.sessions.Session")
ADAPTER = "requests.adapters.HTTPAdapter"  # it has no timeout of its own
FTP = ("ftplib.FTP", "ftplib.FTP_TLS")
# The beginning of an argument whose URL needs no service.
LOCAL = re.compile(r"""f?['"](?:data|file):""")
BY_URL = re.compile(r"(?:timeoutMS|socketTimeoutMS|socket_timeout)=", re.IGNORECASE)


def without(module: Module, facts: Facts) -> Found:
    """Find calls without a timeout."""
    made_with = {f"{each.name}()" for each in module.calls if each.has("timeout")}
    made_with.update(_mounted(module))
    sessions = set(_unlimited(module, *SESSIONS))
    for call in module.calls:
        if not call.name or call.site.is_command or call.is_open_ended:
            continue
        if DJANGO_MAIL.fullmatch(call.name) and not facts.has_mail_timeout:
            yield NO_TIMEOUT, call.node, f"{call.name}() without EMAIL_TIMEOUT"
        base, _, method = call.name.rpartition(".")
        name = f"{SESSIONS[0]}().{method}" if base in sessions else call.name
        if call.name.startswith("redis.") and facts.has_redis_timeout:
            continue
        if call.name in FTP and not call.node.args and not call.has("host"):  # connects later
            continue
        for limited in LIMITED:
            if not limited.names.fullmatch(name):
                continue
            is_given = call.has(*limited.keywords) or (
                limited.position is not None and len(call.node.args) > limited.position
            )
            if is_given or (limited.is_by_socket and facts.has_socket_timeout):
                continue
            if base in made_with:  # PoolManager(timeout=3).request()
                continue
            if any(LOCAL.match(ast.unparse(each)) for each in call.node.args):
                continue
            if any(BY_URL.search(str(getattr(each, "value", ""))) for each in call.node.args):
                continue
            yield NO_TIMEOUT, call.node, f"{name}() without {limited.keywords[0]}"


def has_mail_timeout(modules: Iterable[Module]) -> bool:
    """Return whether the settings of Django limit its mails, or do not say that SMTP sends them."""
    tops = [each.scopes[each.tree] for each in modules]
    backends = [found[1] for each in tops if (found := each.find("EMAIL_BACKEND"))]
    return (
        not any(each.has("EMAIL_HOST") for each in tops)
        or any(each.has("EMAIL_TIMEOUT") for each in tops)
        or any(getattr(each, "value", None) != SMTP_BACKEND for each in backends)
    )


def _unlimited(module: Module, *bases: str) -> Iterator[str]:
    """Yield the names of the objects of its classes that are made of *bases* and set no timeout."""
    for each in chain.from_iterable(map(module.subclasses, bases)):
        if "timeout" not in ast.dump(each).lower():
            yield f".{each.name}()"


def _mounted(module: Module) -> Iterator[str]:
    """Yield the names of sessions that have an adapter which may set a timeout."""
    plain = {f"{ADAPTER}()", *_unlimited(module, ADAPTER)}
    for call in module.calls:
        session, _, method = call.name.rpartition(".")
        adapter = call.given("adapter", 1) if method == "mount" else None
        if adapter is not None and module.name_of(adapter, call.site.scope) not in plain:
            yield session
