"""Patching by the application itself, and what gunicorn's configuration imports before it."""

import ast

from greenline.doctor.codes import BOUND_BEFORE_PATCHING, OTHER_HUB, PATCHED_LATE, PRELOADED
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module
from greenline.doctor.project import preload_app

PATCHES = ("gevent.monkey.patch_all", "greenline.patch.patch_all")
OF_EVENTLET = ("eventlet.monkey_patch", "eventlet.patcher.monkey_patch")
# What may come before: it imports nothing that is patched.
HARMLESS = {"gevent", "greenline", "os", "sys", "warnings", "__future__", "typing"}

# What greenline.hub.patching does not rebind, by module: gevent and greenline.offload replace it.
REPLACED = {
    "fcntl": ("flock", "lockf"),
    "os": ("system", "wait", "wait3", "wait4", "waitid", "waitpid"),
    "selectors": ("DefaultSelector",),
    "socket": ("gethostbyaddr", "gethostbyname_ex", "getnameinfo"),
}


def patched(module: Module, facts: Facts) -> Found:
    """Find patch_all() behind imports, and eventlet's anywhere."""
    # Under a condition it is for another server than gunicorn.
    unconditional = {each.value for each in module.tree.body if isinstance(each, ast.Expr)}
    for call in module.calls:
        if call.node not in unconditional:
            continue
        if call.name in OF_EVENTLET and not call.site.is_command:
            yield OTHER_HUB, call.node, f"{call.name}()"
        if call.name not in PATCHES:
            continue
        before = [
            name
            for node, name, site in module.imports
            if site.is_at_import and node.lineno < call.node.lineno
        ]
        early = [name for name in before if name.partition(".")[0] not in HARMLESS]
        if early:
            yield PATCHED_LATE, call.node, f"{call.name}() after the import of {early[0]}"


def before_patching(module: Module) -> Found:
    """Find the unpatched names that a file of gunicorn's configuration binds."""
    for node, name, site in module.imports:
        package, _, attribute = name.rpartition(".")
        is_kept = attribute in REPLACED.get(package, ())
        if isinstance(node, ast.ImportFrom) and is_kept and site.is_at_import:
            yield BOUND_BEFORE_PATCHING, node, f"from {package} import {attribute}"


def preloading(module: Module) -> Found:
    """Find preload_app in a file of gunicorn's configuration."""
    if (node := preload_app(module.tree)) is not None:
        yield PRELOADED, node, "preload_app = True"
