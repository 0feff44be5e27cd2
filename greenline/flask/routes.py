"""Print how each route of the process's Flask applications is served, for ``greenline routes``."""

from collections.abc import Iterator, Sequence
from typing import Any

from werkzeug.routing import Rule

from greenline.flask.adoption import adopt_each, remainder
from greenline.flask.decisions import ADAPTER, left_to_flask

HEAD = ("rule", "methods", "endpoint", "found")
BY_FLASK = {"HEAD", "OPTIONS"}  # which it adds to the methods of a rule, as a rule


def report(application: Any) -> Iterator[str]:
    """
    Adopt the applications, and yield the lines of the report.

    :param application: the WSGI application.
    """
    for app, refusal in adopt_each(application):
        yield f"{app.import_name}: {f'left to Flask: {refusal}' if refusal else 'adopted'}"
        if refusal:
            continue
        for each in remainder(app):
            yield f"  left to Flask for all routes: {each}"
        by_adapter = left_to_flask(app).get(ADAPTER)
        rules = (_row(app, rule, by_adapter) for rule in app.url_map.iter_rules())
        yield from _table([HEAD, *rules])


def _row(app: Any, rule: Rule, by_adapter: str | None) -> tuple[str, str, str, str]:
    methods = sorted((rule.methods or set()) - BY_FLASK)
    if by_adapter:
        reasons = {by_adapter}
    else:
        reasons = {app.url_map.why_matched(method, rule) for method in methods} - {""}
    found = f"by Werkzeug: {'; '.join(sorted(reasons))}" if reasons else "in a table"
    return rule.rule, ", ".join(methods), str(rule.endpoint), found


def _table(rows: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells).rstrip()}"
