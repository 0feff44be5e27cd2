"""
Remove from gunicorn's own lines what a client or the configuration keeps secret.

It quotes the heads of malformed requests, the queries of failed ones, and with ``loglevel`` at
debug the variables of ``raw_env``.
"""

import logging
import re

HIDDEN = "[hidden]"
# What stays of a line, and after it what does not.
RULES = [
    # A header with its value; or a part of a body, where its length was wrong.
    re.compile(r"""\A(Invalid request from ip=\S*: [^'"]*?)b?['"].*""", re.DOTALL),
    re.compile(r"(No more data after: ).*", re.DOTALL),
    re.compile(r"\A(Error handling request [^?]*\?).*"),
    re.compile(r"^(\s*raw_env: ).*", re.MULTILINE),
]


def redacted(text: str) -> str:
    """Return a line of gunicorn's without the secrets that are quoted in it."""
    for rule in RULES:
        text = rule.sub(rf"\1{HIDDEN}", text)
    return text


def _redact(record: logging.LogRecord) -> bool:
    try:
        text = record.getMessage()
    except Exception:  # the application logs there, too, and logging reports what is wrong
        return True
    if (rest := redacted(text)) != text:
        record.msg, record.args = rest, ()
    return True


def install() -> None:
    """Redact each line of gunicorn's error log, in this process and those that it forks."""
    # A second time it is the same function, which a logger has once.
    logging.getLogger("gunicorn.error").addFilter(_redact)
