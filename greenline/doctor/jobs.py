"""
Find the files that no request runs: of jobs, daemons and commands, and what only these import.

The names of files and folders say which these are. What serves requests is what the import of the
application has loaded, with what frameworks load by its name; where it was not imported, it is what
imports a web framework. Where no file does, as in a library, the names alone count. The name of a
file that has a view or is the application's own, and that of its folder, say nothing. Of a file
that is neither, and that no file of requests imports, it is not known whether a request runs it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePosixPath

from greenline.doctor.module import Module
from greenline.doctor.rules.processes import is_view

# Of folders and files.
JOBS = re.compile(
    r"tasks?|jobs?|harvesters?|daemons?|(?:\w+_)?drivers?|cmd|bin|(?:\w+_)?commands?"
    r"|celery(?:_\w+)?|pytest_plugin|\w+_integrationtests|(?:\w+_)?cli|scripts|manage|__main__"
)
# What frameworks load by its name.
BY_NAME = re.compile(
    r"admin|api|apps|context_processors|fields|forms?|handlers|hooks|middlewares?|models?|providers?"
    r"|receivers|serializers|signals|storages?|templatetags|urls|views?|(?:\w+_)?backends?"
)
# What files import that serve requests, as far as a view needs it.
FRAMEWORKS = re.compile(
    r"(?:flask(?!\.current_app$)|flask_(?!babel|caching|mail|migrate|sqlalchemy)\w+|werkzeug|rest_framework|ninja|tastypie|pyramid|cornice|bottle|falcon|webob"
    r"|pecan|wsme|cherrypy|connexion|tg|py4web|morepath|starlette|fastapi|graphene_django"
    r"|django\.(?:http|views|urls|shortcuts|middleware|template\.response|contrib\.admin"
    r"|contrib\.auth\.views|conf\.urls|utils\.deprecation)|zope\.publisher|plone\.rest|plone\.restapi"
    r"|Products\.Five)(?:\..*)?"
)


def mark(
    modules: Sequence[Module],
    commands: Iterable[Module],
    loaded: Collection[str] = (),
    target: str = "",
) -> None:
    """
    Mark the files that no request runs, and those of which it is not known.

    :param modules: the first-party files.
    :param commands: files of commands that are not examined themselves.
    :param loaded: the paths of those that the import of the application loads. Default: not known.
    :param target: the path of the one that has the application. Default: not known.
    """
    files = {_name(each): each for each in (*commands, *modules)}
    answering = {
        each for name in files if files[name].path == target or _has_view(files[name])
        for each in _prefixes(name)
    }  # fmt: skip
    jobs, by_name = _named(JOBS, files, answering), _named(BY_NAME, files)
    if loaded:
        serving = {name for name, each in files.items() if each.path in loaded} | by_name
    else:
        serving = {name for name, each in files.items() if _serves(each)}
    serving -= jobs
    if serving:
        jobs |= _reached(jobs, files) - _reached(serving, files)
        for name in files.keys() - jobs - _reached(serving | by_name - jobs, files):
            module = files[name]
            module.scopes[module.tree].is_unreached = True
    for name in jobs:
        module = files[name]
        module.scopes[module.tree].is_job = True


def _name(module: Module) -> str:
    """Return the name that other files import it by."""
    name = ".".join(PurePosixPath(module.path).with_suffix("").parts)
    return name.removeprefix("src.").removesuffix(".__init__")


def _named(words: re.Pattern[str], names: Iterable[str], without: Collection[str] = ()) -> set[str]:
    """Return those of *names* of which a part, unless it ends one of *without*, matches *words*."""
    return {
        name
        for name in names
        if any(
            words.fullmatch(prefix.rpartition(".")[2])
            for prefix in _prefixes(name)
            if prefix not in without
        )
    }


def _prefixes(name: str) -> Iterator[str]:
    """Yield the names of the folders that *name* is in, the outermost first, and *name*."""
    return accumulate(name.split("."), "{}.{}".format)


def _has_view(module: Module) -> bool:
    # pytest's fixtures may have an argument named request, too.
    return _serves(module) and any(is_view(call.site) for call in module.calls)


def _serves(module: Module) -> bool:
    return any(FRAMEWORKS.fullmatch(name) for _, name, _ in module.imports) or any(
        scope.has("start_response") for scope in module.scopes.values()
    )


def _reached(names: Collection[str], files: Mapping[str, Module]) -> set[str]:
    """Return *names*, and those of the files that they import or name, directly or not."""
    found, left = set(names), list(names)
    while left:
        module = files[left.pop()]
        imported = [name for _, name, _ in module.imports]
        imported += [name.removeprefix("src.") for name in module.relative_imports]
        # Frameworks import what settings and routes name when a request needs it.
        strings = (text.replace(":", ".") for _, text, _ in module.strings)
        imported += [text for text in strings if _is_named(text, files)]
        for each in imported:
            # from package import name: a module of that name, or a name in the package.
            name = each if each in files else each.rpartition(".")[0]
            if name in files and name not in found:
                found.add(name)
                left.append(name)
    return found


def _is_named(text: str, files: Mapping[str, Module]) -> bool:
    """Return whether *text* is the dotted name of one of *files*, or of something in one."""
    package, _, name = text.rpartition(".")
    module = files.get(package)
    # In templates, checkout.html is neither.
    is_in_one = module is not None and module.scopes[module.tree].has(name)
    return is_in_one or (package != "" and text in files)
