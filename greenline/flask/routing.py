"""
The URL map, which remembers where paths without variables lead.

1. The map itself is asked once for each such path; what it answers is what it would answer again,
   until a rule is added.
2. Only a match is remembered: redirects, wrong methods and everything with a variable are decided
   each time.
"""

from collections.abc import Mapping
from typing import Any

from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map as WerkzeugMap
from werkzeug.routing import MapAdapter, RequestRedirect, Rule, RuleFactory


class Map(WerkzeugMap):
    """A map for applications that match neither hosts nor subdomains."""

    _static: dict[tuple[str, str], Rule] | None = None
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
        try:
            return self._adapter.match(_decoded(path_info), method, return_rule=True)
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
        rules = list(self.iter_rules())
        if any(callable(rule.redirect_to) for rule in rules):
            self._adapter = None
        else:
            self._adapter = adapter = self.bind("localhost", subdomain=self.default_subdomain or "")
            for rule in rules:
                for method in rule.methods or ():
                    if not rule.arguments and _leads(adapter, rule, method):
                        static[method, rule.rule.encode().decode("latin1")] = rule
        self._static = static
        return static


def _leads(adapter: MapAdapter, rule: Rule, method: str) -> bool:
    """Return whether the rule's own path leads to it, and nowhere else first."""
    try:
        found, arguments = adapter.match(rule.rule, method, return_rule=True)
    except HTTPException:
        return False
    return found is rule and not arguments


def _decoded(text: str) -> str:
    """Return a text of a WSGI environ as Werkzeug reads it."""
    return text.encode("latin1").decode(errors="replace")
