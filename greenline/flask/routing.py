"""
Find the rules of most paths in tables that are made from Werkzeug's map.

The tables cover paths without variables, and paths that end in their only variable
(``/books/<int:id>``). A path that no rule begins like is missing. Redirects, wrong methods and all
other paths are left to Werkzeug.
"""

import re
from collections.abc import Callable, Container, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from werkzeug.exceptions import NotFound
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
    """
    The rule of the paths that differ in the last part only.

    :param rule: the rule.
    :param pattern: matches the last part of its paths.
    :param fixed: last parts that belong to other rules.
    :param name: the name of the variable, str.
    :param converter: converts the variable.
    """

    rule: Rule
    pattern: "re.Pattern[str]"
    fixed: Container[str]
    name: str
    converter: BaseConverter


class LazyRule(Rule):
    """A rule that is compiled to a function for building URLs when the first URL is built."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        compile_builder = super()._compile_builder

        def build(rule: Rule, **values: Any) -> tuple[str, str]:
            builder = compile_builder(append_unknown)
            setattr(rule, "_build_unknown" if append_unknown else "_build", builder.__get__(rule))
            return builder(rule, **values)

        return build


class Map(WerkzeugMap):
    """Extend Werkzeug's map, for applications that match neither hosts nor subdomains."""

    _static: dict[tuple[str, str], Rule] | None = None
    _variable: dict[tuple[str, str], Last]
    _left: dict[tuple[str, int], str]  # a method and the id() of a rule: why no table has it
    _adapter: MapAdapter | None = None  # bound to no real host: redirects are never used

    def add(self, rulefactory: RuleFactory) -> None:
        self._static = None  # the tables are made again at the next request
        super().add(rulefactory)

    def find(self, method: str, path_info: str) -> tuple[Rule, Mapping[str, Any]] | None:
        """
        Return the rule and the view's arguments for a request.

        :param method: the request's method, str.
        :param path_info: PATH_INFO of the WSGI environ, str.
        :returns: None if the request's own adapter has to decide.
        :raises HTTPException: no rule matches.
        """
        static = self._static
        if static is None:
            static = self._learn()
        rule = static.get((method, path_info))
        if rule is not None:
            return rule, {}
        if self._adapter is None:
            return None
        path = decoded(path_info)
        before, _, part = path.rpartition("/")
        last = self._variable.get((method, before))
        if last is not None and part not in last.fixed and last.pattern.match(part):
            try:
                return last.rule, {last.name: last.converter.to_python(part)}
            except ValidationError:
                pass  # the converter refuses the value; Werkzeug may know another rule
        if self._has_no_rule(path):
            raise NotFound
        try:
            return self._adapter.match(path, method, return_rule=True)
        except RequestRedirect:  # its URL would have the host of self._adapter
            return None

    def _has_no_rule(self, path: str) -> bool:
        """Return whether Werkzeug's matcher, a tree of parts, has nothing to try for *path*."""
        if path[:1] != "/" or "//" in path:  # it tries other paths as well
            return False
        state = self._matcher._root
        for part in (self.default_subdomain or "", *path.split("/")):
            if state.dynamic:  # a variable may match this part and others
                return False
            if part not in state.static:
                return part != ""  # after a last slash it looks at the rules without one
            state = state.static[part]
        return False

    def why_matched(self, method: str, rule: Rule) -> str:
        """
        Say why Werkzeug's matcher has to find a rule.

        :param method: one of the rule's methods, str.
        :param rule: a rule of this map.
        :returns: the reason; empty if a table has the rule.
        """
        if self._static is None:
            self._learn()
        return self._left.get((method, id(rule)), "")

    def adapt(self, server_name: str, environ: dict[str, Any]) -> MapAdapter:
        """
        Return the adapter that ``bind_to_environ`` makes, without its checks of the host.

        :param server_name: a server name that ``bind_to_environ`` has returned before, str.
        :param environ: the WSGI environ.
        """
        return MapAdapter(
            self,
            server_name,
            decoded(environ.get("SCRIPT_NAME", "/")),
            self.default_subdomain or "",
            environ["wsgi.url_scheme"],
            decoded(environ.get("PATH_INFO", "/")),
            environ["REQUEST_METHOD"],
            decoded(environ.get("QUERY_STRING", "")),
        )

    def _learn(self) -> dict[tuple[str, str], Rule]:
        static: dict[tuple[str, str], Rule] = {}
        self._variable, self._left = {}, {}
        rules = list(self.iter_rules())
        # A callable redirect_to is passed the adapter, which has to be the request's own.
        calling = next((rule for rule in rules if callable(rule.redirect_to)), None)
        if calling is not None:
            self._adapter = None
        else:
            self._adapter = self.bind("localhost", subdomain=self.default_subdomain or "")
        for rule in rules:
            for method in rule.methods or ():
                if self._adapter is None:
                    found: Last | str = f"the redirect_to of {calling} is a function"
                elif not rule.arguments and _leads(self._adapter, rule, method):
                    # WSGI environs hold UTF-8 bytes as Latin-1 text.
                    static[method, rule.rule.encode().decode("latin1")] = rule
                    continue
                else:
                    found = self._last(rule, method)
                if isinstance(found, Last):
                    self._variable[method, "/".join(_fixed(rule)[1:])] = found
                else:
                    self._left[method, id(rule)] = found
        self._static = static
        return static

    def _last(self, rule: Rule, method: str) -> Last | str:
        """
        Return the table's entry for *rule*, if Werkzeug's matcher finds no other rule first.

        :returns: else the reason why there is none.
        """
        domain, *way = _fixed(rule)
        last = rule._parts[-1]
        if rule.build_only:
            return "it is for building URLs only"
        if domain != (self.default_subdomain or ""):
            return f"its subdomain is {domain!r}"
        if not rule._converters:
            return "Werkzeug answers its own path by another rule, a redirect or an error"
        if len(way) != len(rule._parts) - 2 or len(rule._converters) != 1:
            return "its only variable is not the last part of the path"
        ((name, converter),) = rule._converters.items()
        # Werkzeug's matcher is a tree of states, one for each part of a path.
        state = self._matcher._root
        for part in (domain, *way):
            state = state.static[part]
        # The variable is the whole part, unlike "_<id>", and contains no slashes.
        is_whole = last.content == f"(?P<__werkzeug_0>{converter.regex})\\Z" and not last.final
        if not is_whole:
            return "its variable is not one whole part of the path"
        if [test for test, _ in state.dynamic] != [last]:
            return "other rules have a variable of another kind there"
        # The matcher takes the first rule that allows the method.
        first = next(
            one
            for one in state.dynamic[0][1].rules
            if one.methods is None or method in one.methods or one.websocket
        )
        if first is not rule:
            return f"the rule of {first.endpoint} is found before it"
        if rule.redirect_to or rule.alias or rule.defaults or rule.websocket:
            return "it redirects, is an alias, has defaults or is for WebSockets"
        if self._has_defaults(rule.endpoint):
            return "another rule of its endpoint has defaults"
        return Last(rule, re.compile(last.content), state.static, name, converter)

    def _has_defaults(self, endpoint: str) -> bool:
        """Return whether Werkzeug may redirect a path to a rule whose default replaces a part."""
        return any(rule.defaults for rule in self.iter_rules(endpoint))


def _leads(adapter: MapAdapter, rule: Rule, method: str) -> bool:
    """Return whether Werkzeug finds *rule* for its own path."""
    # The answer is the same for each request, until a rule is added.
    try:
        found, arguments = adapter.match(rule.rule, method, return_rule=True)
    except Exception:  # Werkzeug's HTTPException; its ValueError, for an alias that does not fit
        return False
    return found is rule and not arguments


def _fixed(rule: Rule) -> list[str]:
    """Return the subdomain and the parts of the path before the first variable one."""
    return [part.content for part in takewhile(lambda part: part.static, rule._parts)]


def decoded(text: str) -> str:
    """Return the text of a WSGI environ's value, decoded as Werkzeug does."""
    return text.encode("latin1").decode(errors="replace")
