"""Look for findings in the files of a project, and in what they depend on."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from greenline.deploy.findings import Level
from greenline.doctor import dependencies, jobs
from greenline.doctor.findings import Block, Code, Facts, Finding, Found
from greenline.doctor.module import Module
from greenline.doctor.observations import Requests
from greenline.doctor.project import PYPROJECT, Project
from greenline.doctor.reader import read
from greenline.doctor.rules import RULES
from greenline.doctor.rules.imports import before_patching, preloading
from greenline.doctor.rules.timeouts import has_mail_timeout
from greenline.doctor.rules.transactions import has_atomic_requests

BY_COMMENT = "a comment at the line"  # the reason for which a finding is ignored
SOCKET_TIMEOUT = "socket.setdefaulttimeout"
# What a finding is where it is not known whether a request runs it.
LOWERED = {
    Level.ERROR: Level.WARNING, Level.WARNING: Level.REMARK, Level.REMARK: Level.REMARK,
}  # fmt: skip


@dataclass
class Examined:
    """
    The result for all files.

    :param findings: what counts.
    :param ignored: what does not, and why.
    :param unreadable: the files that could not be read, and why.
    :param lines: the number of lines that were read, int.
    :param verdict: whether it is ready, one paragraph, str; empty: it was not run, and the
        findings say why it is not.
    :param note: what is to be known of the environment that the doctor runs in, one line, str.
        Default: nothing.
    :param comments: the codes that comments ignore, by file and line.
    :param folder: what the paths of findings are relative to. Default: the current folder.
    :param anchor: the file that stands for what is found in no file, str, where a form needs one.
        Default: pyproject.toml.
    :param import_s: how long the application's import took, float seconds; None: it was not
        imported.
    :param blocks: what has blocked the hub in a run, whether it is a finding or not.
    :param requests: what the requests of a run have done, by process.
    """

    findings: list[Finding] = field(default_factory=list)
    ignored: list[tuple[Finding, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    lines: int = 0
    verdict: str = ""
    note: str = ""
    comments: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    folder: Path = field(default_factory=Path.cwd)
    anchor: str = PYPROJECT
    import_s: float | None = None
    blocks: list[Block] = field(default_factory=list)
    requests: list[Requests] = field(default_factory=list)

    def add(self, project: Project, findings: Iterable[Finding]) -> None:
        """Add findings, unless a comment at their line or the project ignores them."""
        for each in findings:
            reason = project.reason(each.code.code, each.path)
            if each.code.code in self._comments(project, each.path).get(each.line, ()):
                reason = BY_COMMENT
            if reason is None:
                self.findings.append(each)
            else:
                self.ignored.append((each, reason))

    def _comments(self, project: Project, path: str) -> dict[int, set[str]]:
        # What runs may find something in a file that is not examined, such as one of the tests.
        if path not in self.comments:
            self.comments[path] = {}
            with suppress(SyntaxError, OSError):
                self.comments[path] = read(project.folder / path, path).ignored
        return self.comments[path]


def examine(
    project: Project, facts: Facts, track: Callable[[list[Path]], Iterable[Path]] = iter
) -> Examined:
    """
    Examine the files of *project*.

    :param facts: what is known of the deployment.
    :param track: yields the files that it gets, and may show how far it is. Default: shows nothing.
    """
    examined = Examined(folder=project.folder)
    modules = list(_modules(project, examined, track(list(project.files(facts.loaded)))))
    jobs.mark(modules, _commands(project), facts.loaded, facts.target)
    is_limited = any(call.name == SOCKET_TIMEOUT for each in modules for call in each.calls)
    facts = facts._replace(
        has_socket_timeout=facts.has_socket_timeout or is_limited,
        has_mail_timeout=has_mail_timeout(modules),
        has_atomic_requests=any(map(has_atomic_requests, modules)),
    )
    for module in modules:
        is_configuration = module.path == project.configuration
        examined.add(project, _found(module, facts, is_configuration=is_configuration))
    examined.add(project, dependencies.findings(project, modules, facts))
    return examined


def _modules(project: Project, examined: Examined, paths: Iterable[Path]) -> Iterator[Module]:
    for path in paths:
        shown = project.shown(path)
        try:
            module = read(path, shown)
        except (SyntaxError, OSError) as error:
            line = getattr(error, "lineno", None)
            reason = getattr(error, "msg", None) or str(error)
            examined.unreadable.append((f"{shown}:{line}" if line else shown, reason))
            continue
        examined.lines += module.lines
        examined.comments[shown] = module.ignored
        yield module


def _commands(project: Project) -> Iterator[Module]:
    for path in project.commands():
        with suppress(SyntaxError, OSError):
            yield read(path, project.shown(path))


def _found(module: Module, facts: Facts, *, is_configuration: bool) -> Iterator[Finding]:
    results: list[Found] = (
        [before_patching(module), preloading(module)]
        if is_configuration
        else [rule(module, facts) for rule in RULES]
    )
    scope = module.scopes[module.tree]
    seen: set[tuple[Code, int, str]] = set()
    for result in results:
        for code, node, what in result:
            line = getattr(node, "lineno", 0)
            if (code, line, what) not in seen:
                seen.add((code, line, what))
                is_unreached = scope.is_unreached or module.function_at(line) in scope.unreached
                is_doubtful = is_unreached and not is_configuration
                level = LOWERED[code.level] if is_doubtful else code.level
                yield Finding(code._replace(level=level), module.path, line, what)
