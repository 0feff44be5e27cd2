"""
The URL map, which knows beforehand where most paths lead.

1. A path without variables: the map itself is asked once for each; what it answers is what it would
   answer again, until a rule is added.
2. A path that ends in one variable behind a fixed text (``/books/<int:id>``): Werkzeug's way there
   is known beforehand, if nothing else leads that way.
3. Only a match is known: redirects, wrong methods and everything else are decided each time.
"""

import re
from collections.abc import Container, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from werkzeug.routing import (
    BaseConverter,
    MapAdapter,
    RequestRedirect,
    Rule,
    RuleFactory,
    ValidationError,
)
from werkzeug.routing import Map as WerkzeugMap


class Last(NamedTuple):
    """Where a path leads by its last part: *fixed* ones go elsewhere."""

    rule: Rule
    pattern: "re.Pattern[str]"
    fixed: Container[str]
    name: str
    converter: BaseConverter


class Map(WerkzeugMap):
    """A map for applications that match neither hosts nor subdomains."""

    _static: dict[tuple[str, str], Rule] | None = None
    _variable: dict[tuple[str, str], Last]
    _adapter: MapAdapter | None = None  # Any host's: what redirects by the host is not asked.

    def add(self, rulefactory: RuleFactory) -> None:
        self._static = None
        super().add(rulefactory)

    def find(self, method: str, path_info: str) -> tuple[Rule, Mapping[str, Any]] | None:
        """
        Return the rule and the view's arguments; None when the request's own adapter has to tell.

        Raises:
            HTTPException: no rule matches.
        """
        static = self._static
        if static is None:
            static = self._learn()
        rule = static.get((method, path_info))
        if rule is not None:
            return rule, {}
        if self._adapter is None:
            return None
        path = _decoded(path_info)
        before, _, part = path.rpartition("/")
        last = self._variable.get((method, before))
        if last is not None and part not in last.fixed and last.pattern.match(part):
            try:
                return last.rule, {last.name: last.converter.to_python(part)}
            except ValidationError:
                pass
        try:
            return self._adapter.match(path, method, return_rule=True)
        except RequestRedirect:
            return None

    def adapt(self, server_name: str, environ: dict[str, Any]) -> MapAdapter:
        """Return what ``bind_to_environ`` does, for a server name that it has given before."""
        return MapAdapter(
            self,
            server_name,
            _decoded(environ.get("SCRIPT_NAME", "/")),
            self.default_subdomain or "",
            environ["wsgi.url_scheme"],
            _decoded(environ.get("PATH_INFO", "/")),
            environ["REQUEST_METHOD"],
            _decoded(environ.get("QUERY_STRING", "")),
        )

    def _learn(self) -> dict[tuple[str, str], Rule]:
        static: dict[tuple[str, str], Rule] = {}
        self._variable = {}
        rules = list(self.iter_rules())
        if any(callable(rule.redirect_to) for rule in rules):
            self._adapter = None
        else:
            self._adapter = adapter = self.bind("localhost", subdomain=self.default_subdomain or "")
            for rule in rules:
                for method in rule.methods or ():
                    if not rule.arguments and _leads(adapter, rule, method):
                        static[method, rule.rule.encode().decode("latin1")] = rule
                    elif (last := self._last(rule, method)) is not None:
                        self._variable[method, "/".join(_fixed(rule)[1:])] = last
        self._static = static
        return static

    def _last(self, rule: Rule, method: str) -> Last | None:
        """Return where *rule*'s last part leads, if Werkzeug's matcher can come to nothing else."""
        domain, *way = _fixed(rule)
        last = rule._parts[-1]
        if (
            rule.build_only
            or domain != (self.default_subdomain or "")
            or len(way) != len(rule._parts) - 2
            or len(rule._converters) != 1
        ):
            return None
        ((name, converter),) = rule._converters.items()
        state = self._matcher._root
        for part in (domain, *way):
            state = state.static[part]
        # Not "_<id>", nor a variable with slashes in it.
        is_whole = last.content == f"(?P<__werkzeug_0>{converter.regex})\\Z" and not last.final
        if not is_whole or [test for test, _ in state.dynamic] != [last]:
            return None
        first = next(
            one
            for one in state.dynamic[0][1].rules
            if one.methods is None or method in one.methods or one.websocket
        )
        redirects = rule.redirect_to or rule.alias or rule.defaults or rule.websocket
        if first is not rule or redirects or self._has_defaults(rule.endpoint):
            return None
        return Last(rule, re.compile(last.content), state.static, name, converter)

    def _has_defaults(self, endpoint: str) -> bool:
        """Return whether a path may be redirected to one that is shorter by a default."""
        return any(rule.defaults for rule in self.iter_rules(endpoint))


def _leads(adapter: MapAdapter, rule: Rule, method: str) -> bool:
    """Return whether the rule's own path leads to it, and nowhere else first."""
    try:
        found, arguments = adapter.match(rule.rule, method, return_rule=True)
    except Exception:  # Werkzeug's HTTPException; its ValueError, for an alias that does not fit
        return False
    return found is rule and not arguments


def _fixed(rule: Rule) -> list[str]:
    """Return the subdomain and the parts of the path before the first variable one."""
    return [part.content for part in takewhile(lambda part: part.static, rule._parts)]


def _decoded(text: str) -> str:
    """Return a text of a WSGI environ as Werkzeug reads it."""
    return text.encode("latin1").decode(errors="replace")
