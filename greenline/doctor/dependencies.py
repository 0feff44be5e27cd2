"""
Find the libraries of an application that block the hub, or break, under a green worker.

They are those that first-party code imports or names in a string, those that the project declares,
and what these need, as far as they are installed where the doctor runs. The verdicts are those of
:mod:`greenline.hub.compatibility`.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from greenline import settings
from greenline.deploy.findings import Level
from greenline.doctor.codes import (
    BLOCKING_DEPENDENCY,
    BREAKING_DEPENDENCY,
    OLDER_DEPENDENCY,
    UNKNOWN_DEPENDENCY,
    UNPREPARED_DEPENDENCY,
)
from greenline.doctor.findings import Code, Facts, Finding
from greenline.doctor.module import Call, Module, Site
from greenline.doctor.project import Project
from greenline.doctor.requirements import declared, installed, installed_packages, parsed
from greenline.hub.compatibility import (
    BLOCKS,
    BREAKS,
    NEEDS_ORDER,
    PATCHED_FIRST,
    Record,
    records,
)

# C extensions that parse, encode or compute for a moment, and wait for nothing.
NEVER_WAIT = {
    "accesscontrol", "acquisition", "aiohttp", "argon2-cffi-bindings", "backports-zstd", "brotli",
    "brotlicffi", "btrees", "cbor2", "cffi", "chardet", "charset-normalizer", "contourpy",
    "coverage", "cryptography", "extensionclass", "fonttools", "frozenlist", "greenlet",
    "httptools", "jiter", "kiwisolver", "lazy-object-proxy", "libcst", "libsass", "lxml",
    "markupsafe", "msgpack", "msgspec", "multidict", "multimapping", "mypy", "nh3", "orjson",
    "pendulum", "persistence", "persistent", "propcache", "protobuf", "pydantic-core",
    "python-rapidjson", "pyyaml", "rapidfuzz", "rcssmin", "regex", "rjsmin", "rpds-py",
    "ruamel-yaml-clib", "simplejson", "tornado", "ujson", "websockets", "wrapt", "yarl",
    "zodbpickle", "zope-container", "zope-hookable", "zope-i18nmessageid", "zope-interface",
    "zope-proxy", "zope-security", "zstandard",
}  # fmt: skip
# What is imported for a URL of a database, by its scheme: SQLAlchemy's dialect and driver.
DRIVERS = {
    "mariadb+mysqlconnector": "mysql.connector",
    "mariadb+mysqldb": "MySQLdb",
    "mssql+pymssql": "pymssql",
    "mssql+pyodbc": "pyodbc",
    "mysql+mysqlconnector": "mysql.connector",
    "mysql+mysqldb": "MySQLdb",
    "mysql+pyodbc": "pyodbc",
    "oracle+cx_oracle": "cx_Oracle",
}
# Without a driver, others than SQLAlchemy and Django may import another one.
DEFAULT_DRIVERS = {"mariadb": "MySQLdb", "mssql": "pyodbc", "mysql": "MySQLdb"}
WITH_DEFAULTS = ("sqlalchemy", "flask_sqlalchemy", "sqlmodel", "dj_database_url", "environ")
URL = re.compile(r"(\w+)://.|(\w+\+\w+)(?:://|$)")
# What Django imports for a database or a cache.
BACK_ENDS = {
    "django.contrib.gis.db.backends.mysql": "MySQLdb",
    "django.core.cache.backends.memcached.MemcachedCache": "memcache",
    "django.core.cache.backends.memcached.PyLibMCCache": "pylibmc",
    "django.db.backends.mysql": "MySQLdb",
    "mssql": "pyodbc",
    "mysql.connector.django": "mysql.connector",
}
BACK_END_KEYS = ("ENGINE", "BACKEND")
CODES = {
    BLOCKS: BLOCKING_DEPENDENCY,
    BREAKS: BREAKING_DEPENDENCY,
}
# What gunicorn's arbiter calls of its configuration before it forks a worker.
ARBITERS_HOOKS = ("on_starting", "when_ready", "pre_fork")
# What the worker itself runs on.
OURS = {"gevent", "greenline", "gunicorn", "gunicorn-h1c"}


class Use(NamedTuple):
    """
    An import of first-party code, or of a library by a string of it.

    :param module: the file.
    :param line: the line, from 1 on, int.
    :param name: the dotted name that is imported, str.
    :param is_at_import: it happens when the file is imported, or in a hook of gunicorn.conf.py
        that the arbiter calls, bool.
    :param is_in_string: a framework imports it for a string of the file, bool. Default: no.
    """

    module: Module
    line: int
    name: str
    is_at_import: bool
    is_in_string: bool = False

    @property
    def is_of_requests(self) -> bool:
        """Whether it is known that a file of requests has it or imports the file."""
        return not (self.is_of_jobs or self.module.scopes[self.module.tree].is_unreached)

    @property
    def is_of_jobs(self) -> bool:
        """Whether its file is of those that no request runs."""
        return self.module.scopes[self.module.tree].is_job


class _Seen(NamedTuple):
    """
    What is known of all libraries.

    :param facts: what is known of the deployment, and of the application's import.
    :param uses: where first-party files import something.
    :param calls: their calls.
    :param required: what is declared or imported, with what that requires, by canonical name; None
        where it is not installed.
    :param mandatory: that of what is declared without extras and groups.
    :param unpatched: the paths of files that are imported before the patching.
    """

    facts: Facts
    uses: Sequence[Use]
    calls: Sequence[Call]
    required: dict[str, Distribution | None]
    mandatory: dict[str, Distribution | None]
    unpatched: set[str]


def findings(project: Project, modules: Sequence[Module], facts: Facts) -> Iterator[Finding]:
    """
    Yield findings about libraries.

    :param modules: the first-party files.
    :param facts: what is known of the deployment, and of the application's import.
    """
    uses = [
        Use(module, node.lineno, name, _is_at_start(module, site, project.configuration))
        for module in modules
        for node, name, site in module.imports
        if not site.is_script
    ]
    uses += [each for module in modules for each in _named_in_strings(module, uses)]
    calls = [call for module in modules for call in module.calls]
    required = _closure({*_imported(uses), *declared(project.folder)})
    mandatory = _closure(declared(project.folder, with_groups=False))
    unpatched = _before_patching(modules, project.configuration)
    seen = _Seen(facts, uses, calls, required, mandatory, unpatched)
    for record in records():
        for finding in _of_record(record, seen):
            if finding.path or record.name not in facts.blocking:
                yield finding
    # What first-party code imports is judged by that, and prepared where the import does not show.
    loaded = facts.blocking
    used = {each.name for each in records() if each.name in loaded and any(_own(each, uses))}
    yield from (loaded[name] for name in sorted(loaded.keys() - used))
    known = {canonicalize_name(each.name) for each in records()} | NEVER_WAIT | OURS
    # psycopg2-binary and psycopg-binary are the same drivers under other names.
    unknown = sorted(
        each.name
        for name, each in required.items()
        if each is not None and name.removesuffix("-binary") not in known and _has_extension(each)
    )
    if unknown:
        yield Finding(UNKNOWN_DEPENDENCY, "", 0, ", ".join(unknown))
    older = sorted(
        f"{each.name} {there.version} ({each.version} was tried)"
        for each in records()
        if each.tried
        and any(_own(each, uses))
        and (there := installed(each.name)) is not None
        and _is_older(there.version, each.version)
    )
    if older:
        yield Finding(OLDER_DEPENDENCY, "", 0, ", ".join(older))


def _of_record(record: Record, seen: _Seen) -> Iterator[Finding]:
    own = list(_own(record, seen.uses))
    of_requests = [each for each in own if each.is_of_requests]
    name = canonicalize_name(record.name)
    # An extra or a back end counts where somebody installs it and has the application use it.
    is_used = record.name in seen.facts.blocking
    is_optional = bool(seen.mandatory) and name not in seen.mandatory and not is_used
    is_installed = installed(record.name) is not None
    is_done_without = bool(seen.facts.loaded) and not is_used
    is_left_out = not is_installed and (is_optional or is_done_without)
    if record.when is not None and not _does(record.when, seen.uses, seen.calls):
        return
    # A hook of gunicorn.conf.py that imports it, such as post_fork, runs after the patching.
    early = [each for each in own if each.is_at_import and each.module.path in seen.unpatched]
    if record.before_patching:
        if own and not early:
            yield _finding(UNPREPARED_DEPENDENCY, record, own[0])
        return
    if record.verdict in (PATCHED_FIRST, NEEDS_ORDER) and early:
        yield _finding(UNPREPARED_DEPENDENCY, record, early[0])
        return
    code = CODES.get(record.verdict)
    if code is None or _is_offloaded(record):
        return
    if own:
        level = code.level
        calling = list(_calling(record, of_requests, seen))
        # What the import has loaded for files of settings and the like, a request may use.
        is_known = bool(of_requests) or (is_used and not all(each.is_of_jobs for each in own))
        # A call that computes ends by itself, so it only makes the others late.
        if record.computes or not is_known or is_left_out:
            level = Level.REMARK
        elif level == Level.ERROR and (is_optional or not is_installed or not calling):
            level = Level.WARNING
        there = "" if is_installed else f" is not installed here{_tried(record)}"
        use = (calling or of_requests or own)[0]
        yield _finding(code._replace(level=level), record, use, there)
    elif name in seen.required and not record.computes:
        # Another library may need it: whether a request uses it is not known.
        what = f"{record.name} is required, and not imported here: {_reason(record)}"
        if seen.required[name] is None:
            there = f"it is not installed here{_tried(record)}"
            what = f"{record.name} is required; {there}: {_reason(record)}"
        is_error = code.level == Level.ERROR and not is_done_without
        level = Level.WARNING if is_error else Level.REMARK
        yield Finding(code._replace(level=level), "", 0, what)


def _calling(record: Record, uses: Iterable[Use], seen: _Seen) -> Iterator[Use]:
    """
    Yield the *uses* in files where a request may call something of the library.

    What gets its module as an argument may call it, and so may a framework for a string. Of a file
    that the application's import has not loaded, it is not known whether a request imports it.
    """
    files = {
        call.site.scope.top
        for call in seen.calls
        if call.site.is_of_requests
        and (_is_of(record, call.name) or not call.arguments().isdisjoint(record.modules))
    }
    for each in uses:
        is_called = each.is_in_string or each.module.scopes[each.module.tree] in files
        if is_called and (not seen.facts.loaded or each.module.path in seen.facts.loaded):
            yield each


def _named_in_strings(module: Module, imports: Sequence[Use]) -> Iterator[Use]:
    """Yield the drivers that are imported for what strings of *module* name."""
    has_defaults = any(_is_in(each.name, one) for each in imports for one in WITH_DEFAULTS)
    drivers = DRIVERS | (DEFAULT_DRIVERS if has_defaults else {})
    for node, text, site in module.strings:
        found = URL.match(text)
        if found and (name := drivers.get(found[1] or found[2])) and not site.is_script:
            yield Use(module, node.lineno, name, is_at_import=False, is_in_string=True)
    for pairs, site in module.dicts:
        for key, value in zip(pairs.keys, pairs.values, strict=True):
            if getattr(key, "value", None) not in BACK_END_KEYS or site.is_script:
                continue
            for each in ast.walk(value):
                if name := BACK_ENDS.get(str(getattr(each, "value", ""))):
                    yield Use(module, value.lineno, name, is_at_import=False, is_in_string=True)


def _finding(code: Code, record: Record, use: Use, there: str = "") -> Finding:
    what = f"{record.name}{there}: {_reason(record)}"
    if record.instead:
        what += f"; instead: {record.instead}"
    return Finding(code, use.module.path, use.line, what)


def _own(record: Record, uses: Iterable[Use]) -> Iterator[Use]:
    """Yield the uses of the library by first-party code."""
    return (each for each in uses if _is_of(record, each.name))


def _is_of(record: Record, name: str) -> bool:
    """Return whether *name* is of the library, and of a module of it that may wait."""
    is_apart = any(_is_in(name, one) for one in record.without)
    return not is_apart and any(_is_in(name, one) for one in record.modules)


def _tried(record: Record) -> str:
    return f", and version {record.version} was tried" if record.tried else ""


def _reason(record: Record) -> str:
    return record.why if record.tried else f"not tried; {record.source} says so"


def _is_older(version: str, tried: str) -> bool:
    """Return whether it is of an earlier major version; of 0.x, of an earlier minor one."""
    try:
        one, other = Version(version), Version(tried)
    except InvalidVersion:
        return False
    parts = 1 if other.major else 2
    return one.release[:parts] < other.release[:parts]


def _is_in(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"{module}.")


def _does(name: str, uses: Iterable[Use], calls: Iterable[Call]) -> bool:
    """Return whether first-party code imports or calls *name*."""
    names = (*(each.name for each in uses), *(call.name for call in calls))
    return any(_is_in(each, name) for each in names)


def _is_offloaded(record: Record) -> bool:
    names = settings.OFFLOAD.read() or ()
    return any(_is_in(name.partition(":")[0], one) for name in names for one in record.modules)


def _before_patching(modules: Sequence[Module], configuration: str) -> set[str]:
    """Return the paths of gunicorn's configuration, and of the first-party files it imports."""
    by_path = {each.path: each for each in modules}
    left, found = [configuration], set[str]()
    while left:
        path = left.pop()
        if path in found or path not in by_path:
            continue
        found.add(path)
        for _, name, site in by_path[path].imports:
            if _is_at_start(by_path[path], site, configuration):
                words = name.split(".")
                for count in range(1, len(words) + 1):
                    stem = "/".join(words[:count])
                    left += [f"{stem}.py", f"{stem}/__init__.py"]
    return found


def _is_at_start(module: Module, site: Site, configuration: str) -> bool:
    """Return whether *site* runs when its file is imported, or before gunicorn forks a worker."""
    function = site.scope.function
    is_hook = function is not None and function.name in ARBITERS_HOOKS
    return site.is_at_import or (is_hook and module.path == configuration)


def _imported(uses: Iterable[Use]) -> Iterator[str]:
    """Yield the requirements that the imports stand for."""
    packages = installed_packages()
    for name in {each.name.partition(".")[0] for each in uses} - set(sys.stdlib_module_names):
        yield from (each.name for each in packages.get(name, ()))


def _closure(wanted: Iterable[str]) -> dict[str, Distribution | None]:
    """Return *wanted* and what they need by name, and the distribution of each that is there."""
    found: dict[str, Distribution | None] = {}
    left, seen = list(wanted), set[str]()
    while left:
        text = left.pop()
        if text in seen:
            continue
        seen.add(text)
        requirement = parsed(text)
        if requirement is None:
            continue
        there = found[canonicalize_name(requirement.name)] = installed(requirement.name)
        for line in (there.requires or ()) if there else ():
            needed = parsed(line, requirement.extras)
            if needed is not None:
                needed.marker = None
                left.append(str(needed))
    return found


def _has_extension(there: Distribution) -> bool:
    return any(str(each).endswith(tuple(EXTENSION_SUFFIXES)) for each in there.files or ())
