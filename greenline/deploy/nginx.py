"""
Read an nginx.conf and its includes into facts about the locations that proxy.

A directive that is not set has nginx's default, and is marked as such.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

from crossplane import analyzer, parse
from gunicorn.util import parse_address

from greenline.deploy.facts import DirectiveLocation, Nginx, Route, Sourced, Upstream
from greenline.errors import ConfigError

CONTEXTS = ("http", "server", "location", "if", "limit_except")
# A time's unit depends on the case: 5m are minutes, 5M are months, of 30 days to nginx.
SECONDS = {
    "ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800,
    "M": 30 * 86_400, "y": 365 * 86_400,
}  # fmt: skip
BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "K": 1024, "M": 1024**2, "G": 1024**3}
# nginx 1.29.7 added a second argument, `local`, which crossplane's table does not know.
analyzer.DIRECTIVES["keepalive"] = [analyzer.NGX_HTTP_UPS_CONF | analyzer.NGX_CONF_TAKE12]

# The server of a proxy_pass. A variable may follow it, if its value begins with a slash.
PASSED_TO = re.compile(
    r"https?://(?:(unix:[^:$]+)(?::|$)"
    r"|(?!unix:)([^/?$]+)(?:[/?]|$|\$\{?(?:request_uri|uri|document_uri)\b))"
)
# The values of real_ip_header that a proxy before this one overwrites or appends to. Many pass on
# the client's own X-Real-IP, the default.
REAL_IP = {"x-forwarded-for", "proxy_protocol"}


@dataclass(frozen=True)
class Directive:
    """
    Hold a line of a configuration, or a block.

    :param name: the directive's name, str.
    :param args: its arguments.
    :param where: its ``file:line``, str.
    :param block: the directives in its block, empty for a line.
    """

    name: str
    args: tuple[str, ...]
    where: str
    block: tuple["Directive", ...]


Block = tuple[Directive, ...]
Levels = tuple[Block, ...]
# The blocks around a directive, the outermost first.
Parents = tuple[Directive, ...]


def read(file: str) -> Nginx:
    """
    Return the facts in *file*.

    :param file: its path, str; ``/dev/null``: there is no nginx.
    :raises ConfigError: it cannot be read, or proxies nothing; the text is one line.
    """
    top = tree(file)
    # The top counts as http: the file may be a part of a configuration (conf.d/site.conf).
    levels = [top, *(one.block for one in top if one.name == "http")]
    upstreams = {
        one.args[0].lower(): _upstream(one)  # nginx compares upstream names without case
        for level in levels
        for one in level
        if one.name == "upstream" and one.args
    }
    routes, unread = [], []
    for one, parents in _passes(top, ()):
        if found := PASSED_TO.match(one.args[0]):
            routes.append(_route(one, found, top, parents, upstreams))
        else:
            unread.append(Sourced(one.args[0], one.where))
    if not routes and file != os.devnull:
        raise ConfigError(f"{file}: no location has a proxy_pass with a fixed server")
    events = next((one for one in top if one.name == "events"), None)
    processes = _one(file, (top,), "worker_processes", "1").value
    return Nginx(
        file=file,
        routes=tuple(routes),
        unread=tuple(unread),
        without_upgrade=dict(_without_upgrade(levels)),
        processes=int(processes) if processes.isdigit() else None,
        events=None if events is None else DirectiveLocation(events.where, "events"),
        worker_connections=None
        if events is None
        else _count(_one(events.where, (events.block,), "worker_connections", "512")),
        descriptors=_count(_one(file, (top,), "worker_rlimit_nofile", "0")),
    )


def tree(file: str) -> Block:
    """
    Return *file* as nested blocks, its includes inserted.

    :raises ConfigError: it cannot be read; the text is one line.
    """
    statements = _parsed(file)
    return _block(statements, _Including(_folder(file, statements), (file,)))


class _Including(NamedTuple):
    """
    Locate the files that a file includes.

    :param folder: the folder of relative paths, str.
    :param files: the file, behind those that include it.
    """

    folder: str
    files: tuple[str, ...]


def _folder(file: str, statements: Any) -> str:
    # nginx resolves a relative path against the folder of its main file, in each included file
    # too. For a part (sites-available/app) that is the nearest folder above with an nginx.conf.
    own = os.path.dirname(file)
    is_main = any(one["directive"] in ("http", "events") for one in statements)
    above = () if is_main else (Path(own).absolute(), *Path(own).absolute().parents)
    return next((str(one) for one in above if (one / "nginx.conf").exists()), own)


def _parsed(file: str) -> Any:
    # No check of contexts: crossplane's table is older than nginx. `single`: crossplane would
    # resolve the includes of a part against the part's own folder.
    payload = parse(file, check_ctx=False, single=True)
    for error in payload["errors"]:
        where = f"{error['file']}:{error['line']}" if error["line"] else error["file"]
        # crossplane repeats the position at the end of its message.
        message = re.sub(r" in [^\"]*:\d+$", "", error["error"])
        raise ConfigError(f"{where}: {message or 'the file ends in the middle of a directive'}")
    return payload["config"][0]["parsed"]


def _block(statements: Any, including: _Including) -> Block:
    block: list[Directive] = []
    for one in statements:
        where = f"{including.files[-1]}:{one['line']}"
        if one["directive"] == "include":
            block += _included(one["args"][0], where, including)
        else:
            inner = _block(one.get("block", ()), including)
            block.append(Directive(one["directive"], tuple(one["args"]), where, inner))
    return tuple(block)


def _included(pattern: str, where: str, including: _Including) -> Iterator[Directive]:
    path = os.path.join(including.folder, pattern)
    found = sorted(glob(path))
    if not found and not has_magic(path):  # nginx accepts a pattern without a match
        raise ConfigError(f"{where}: No such file: {path}")
    for file in found:
        if file in including.files:
            raise ConfigError(f"{file}: the file includes itself")
        inner = including._replace(files=(*including.files, file))
        yield from _block(_parsed(file), inner)


def _passes(block: Block, parents: Parents) -> Iterator[tuple[Directive, Parents]]:
    """Yield each proxy_pass with the blocks around it."""
    for one in block:
        if one.name == "proxy_pass":
            yield one, parents
        elif one.name in CONTEXTS:
            yield from _passes(one.block, (*parents, one))


def _without_upgrade(levels: Sequence[Block]) -> Iterator[tuple[str, Sourced[str]]]:
    for one in (one for level in levels for one in level if one.name == "map"):
        if one.args[0] == "$http_upgrade":
            values = {
                each.name: Sourced(each.args[0], each.where) for each in one.block if each.args
            }
            # nginx maps an empty value by "", else by "default", else to the empty string.
            default = values.get("default", Sourced("", one.where))
            yield one.args[1], values.get("") or replace(default, is_set=False)


def _route(
    proxy_pass: Directive,
    found: re.Match[str],
    top: Block,
    parents: Parents,
    known: dict[str, Upstream],
) -> Route:
    where = proxy_pass.where
    levels = (top, *(one.block for one in parents))
    server, uri = found[1] or found[2], proxy_pass.args[0][found.end(found.lastindex or 0) :]
    place = _place(proxy_pass, top, parents)
    headers = _at_one_level(levels, "proxy_set_header")
    pages = _at_one_level(levels, "error_page")
    intercepts = _flag(_one(where, levels, "proxy_intercept_errors", "off"))
    # The last argument is the page, and "=200" replaces the status.
    statuses = {arg for page in pages for arg in page.args[:-1] if arg.isdigit()}
    real_ip_from = _at_one_level(levels, "set_real_ip_from")
    real_ip_header = _one(where, levels, "real_ip_header", "X-Real-IP").value
    return Route(
        where=where,
        scheme=proxy_pass.args[0].partition("//")[0] + "//",
        uri=uri.removeprefix(":"),
        place=place,
        headers_place=DirectiveLocation(headers[0].where, "proxy_set_header") if headers else place,
        server_place=_server_place(top, parents),
        upstream=known.get(server.lower()) or _unnamed(server, where),
        http_version=_one(where, levels, "proxy_http_version", "1.0"),
        headers={one.args[0].lower(): Sourced(one.args[1], one.where) for one in headers},
        connect_timeout_s=_time(_one(where, levels, "proxy_connect_timeout", "60s")),
        read_timeout_s=_time(_one(where, levels, "proxy_read_timeout", "60s")),
        max_body_bytes=_size(_one(where, levels, "client_max_body_size", "1m")),
        request_buffering=_flag(_one(where, levels, "proxy_request_buffering", "on")),
        buffering=_flag(_one(where, levels, "proxy_buffering", "on")),
        next_upstream=_words(where, levels, "proxy_next_upstream", "error timeout"),
        next_tries=_count(_one(where, levels, "proxy_next_upstream_tries", "0")),
        replaced=Sourced(frozenset(statuses if intercepts.value else ()), intercepts.where),
        real_ip_from=tuple(Sourced(one.args[0], one.where) for one in real_ip_from),
        has_real_ip=bool(real_ip_from) and real_ip_header.lower() in REAL_IP,
    )


def _place(proxy_pass: Directive, top: Block, parents: Parents) -> DirectiveLocation:
    """Return the first directive of the location, in its own file if there is one."""
    # nginx allows few directives in `if` and `limit_except`: those of the location apply there. One
    # place for all of a location, as nginx refuses a directive that is there twice.
    levels = [one for one in parents if one.name not in ("if", "limit_except")]
    block, around = (levels[-1].block, levels[-1]) if levels else (top, proxy_pass)
    file = around.where.rpartition(":")[0]
    found = next((one for one in block if one.where.rpartition(":")[0] == file), block[0])
    # crossplane takes the parentheses of an `if` from its arguments.
    arguments = () if found.name == "if" else found.args[:1]
    return DirectiveLocation(found.where, " ".join([found.name, *arguments]))


def _server_place(top: Block, parents: Parents) -> DirectiveLocation | None:
    """Return the first server block among those around the location's."""
    names = [one.name for one in parents]
    if "server" not in names:
        return None
    at = names.index("server")
    block = parents[at - 1].block if at else top
    return DirectiveLocation(next(one.where for one in block if one.name == "server"), "server {")


def _unnamed(server: str, where: str) -> Upstream:
    # nginx's defaults for a server without an upstream block.
    return Upstream(
        where=where,
        name="",
        lines=(Sourced((server,), where),),
        servers=(_address(server, where),),
        max_fails=(Sourced(1, where, is_set=False),),
        keepalive=Sourced(0, where, is_set=False),
        keepalive_timeout_s=Sourced(60.0, where, is_set=False),
    )


def _upstream(block: Directive) -> Upstream:
    where, levels = block.where, (block.block,)
    servers = [one for one in block.block if one.name == "server" and "down" not in one.args]
    return Upstream(
        where=where,
        name=block.args[0],
        lines=tuple(Sourced(one.args, one.where) for one in servers),
        servers=tuple(_address(one.args[0], one.where) for one in servers),
        max_fails=tuple(_max_fails(one) for one in servers),
        keepalive=_count(_one(where, levels, "keepalive", "0")),
        keepalive_timeout_s=_time(_one(where, levels, "keepalive_timeout", "60s")),
    )


def _max_fails(server: Directive) -> Sourced[int]:
    max_fails = [arg.partition("=")[2] for arg in server.args if arg.startswith("max_fails=")]
    return _count(Sourced(max_fails[-1] if max_fails else "1", server.where, bool(max_fails)))


def _address(text: str, where: str) -> Any:
    try:
        return parse_address(text, "80")
    except RuntimeError as error:
        raise ConfigError(f"{where}: {text}: {error}") from error


def _at_one_level(levels: Levels, name: str) -> list[Directive]:
    """Return the directives *name* of the innermost level that has any."""
    # nginx does not merge levels: one proxy_set_header of its own drops all inherited ones.
    for block in reversed(levels):
        if found := [one for one in block if one.name == name]:
            return found
    return []


def _one(where: str, levels: Levels, name: str, default: str) -> Sourced[str]:
    found = _at_one_level(levels, name)
    return Sourced(found[-1].args[0], found[-1].where) if found else Sourced(default, where, False)


def _words(where: str, levels: Levels, name: str, default: str) -> Sourced[frozenset[str]]:
    found = _at_one_level(levels, name)
    if not found:
        return Sourced(frozenset(default.split()), where, is_set=False)
    return Sourced(frozenset(found[-1].args), found[-1].where)


def _flag(found: Sourced[str]) -> Sourced[bool]:
    return Sourced(found.value.lower() == "on", found.where, found.is_set)


def _count(found: Sourced[str]) -> Sourced[int]:
    if not found.value.isdigit():
        raise ConfigError(f"{found.where}: {found.value!r} is not a whole number")
    return Sourced(int(found.value), found.where, found.is_set)


def _time(found: Sourced[str]) -> Sourced[float]:
    return _measured(found, SECONDS, "time")


def _size(found: Sourced[str]) -> Sourced[int]:
    sized = _measured(found, BYTES, "size")
    return Sourced(int(sized.value), sized.where, sized.is_set)


def _measured(found: Sourced[str], units: dict[str, Any], what: str) -> Sourced[float]:
    text = found.value
    # A time may have several parts, as in "1m 30s".
    parts = re.findall(r"(\d+)([a-zA-Z]*)\s*", text)
    if not re.fullmatch(r"(\d+[a-zA-Z]*\s*)+", text) or any(unit not in units for _, unit in parts):
        raise ConfigError(f"{found.where}: {found.value!r} is not a {what} that nginx accepts")
    value = sum(int(number) * units[unit] for number, unit in parts)
    return Sourced(value, found.where, found.is_set)
