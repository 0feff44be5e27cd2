"""
Find the files that no request runs: of jobs, daemons and commands, and what only these import.

The names of files and folders say which these are. What imports a web framework serves requests,
if the import of the application has loaded it, and so does what frameworks load by its name, and
what that import has loaded although no file imports it: an application's configuration names it.
Where no file does, as in a library, the names alone count. The name of a file that has a view or is
the application's own, and that of its folder, say nothing. Of a file that is neither, and that no
file of requests imports, it is not known whether a request runs it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePosixPath

from greenline.doctor import mentions
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
    r"|django\.(?:core\.[aw]sgi|http|views|urls|shortcuts|middleware|template\.response|contrib\.admin"
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
    Mark the files that no request runs, and the files and functions of which it is not known.

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
    running = {name for name, each in files.items() if not loaded or each.path in loaded} - jobs
    serving = {each for each in running if files[each].path == target or _serves(files[each])}
    imports = {name: _imports(name, files) for name in files}
    if loaded:
        serving |= by_name - jobs | _by_configuration(running, files, imports)
    if serving:
        jobs |= _reached(jobs, imports) - _reached(serving, imports)
        reached = _reached(serving | by_name - jobs, imports) - jobs
        for name in files.keys() - jobs - reached:
            module = files[name]
            module.scopes[module.tree].is_unreached = True
        mentions.mark([files[name] for name in reached], target)
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


def _by_configuration(
    running: Iterable[str], files: Mapping[str, Module], imports: Mapping[str, Collection[str]]
) -> set[str]:
    """Return what the import loads and no file imports: its name is in the configuration."""
    imported = set().union(*imports.values())
    # A package is loaded for the sake of what is in it.
    packages = {name for name in running if files[name].path.endswith("__init__.py")}
    return set(running) - imported - packages


def _reached(names: Collection[str], imports: Mapping[str, Collection[str]]) -> set[str]:
    """Return *names*, and those of the files that they import or name, directly or not."""
    found, left = set(names), list(names)
    while left:
        for name in imports[left.pop()]:
            if name not in found:
                found.add(name)
                left.append(name)
    return found


def _imports(name: str, files: Mapping[str, Module]) -> set[str]:
    """Return those of *files* that a file imports or names."""
    return {_file_of(each, files) for each in _imported(name, files)} & files.keys()


def _imported(name: str, files: Mapping[str, Module]) -> Iterator[str]:
    """Yield the dotted names of what a file imports, or names in a string."""
    module, around = files[name], set(_prefixes(name))
    imported = [each for _, each, _ in module.imports]
    for each in (*imported, *(each.removeprefix("src.") for each in module.relative_imports)):
        if each in around:  # the package that it is in: not all of that, but what it calls there
            yield from (call.name for call in module.calls if call.name.startswith(f"{each}."))
        else:
            yield each
    # Frameworks import what settings and routes name when a request needs it.
    strings = (text.replace(":", ".") for _, text, _ in module.strings)
    yield from (text for text in strings if _is_named(text, files))


def _file_of(name: str, files: Mapping[str, Module]) -> str:
    """Return the file that the dotted name *name* is of, or that has it; empty: there is none."""
    seen = set()
    while True:
        seen.add(name)
        file, attribute = name, ""
        while file and file not in files:
            file, _, attribute = file.rpartition(".")
        if not attribute or not file or not files[file].path.endswith("__init__.py"):
            return file
        # A package that only imports it. The others of its imports are not needed.
        top = files[file].scopes[files[file].tree]
        value = (top.find(attribute) or (top, None))[1]
        name = _absolute(value, file) if isinstance(value, str) else name
        if name in seen or name.partition(".")[0] not in files:
            return file


def _absolute(name: str, package: str) -> str:
    """Return *name*, which is relative to *package* if it begins with a dot."""
    level = len(name) - len(name.lstrip("."))
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], name[level:]]) if level else name


def _is_named(text: str, files: Mapping[str, Module]) -> bool:
    """Return whether *text* is the dotted name of one of *files*, or of something in one."""
    package, _, name = text.rpartition(".")
    module = files.get(package)
    # In templates, checkout.html is neither.
    is_in_one = module is not None and module.scopes[module.tree].has(name)
    return is_in_one or (package != "" and text in files)
