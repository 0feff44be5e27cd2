"""COPY and large objects of psycopg2 that the worker does not provide."""

import re

from greenline.doctor.codes import NOT_EMULATED
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module

COPIES = r"copy_(?:expert|from|to)"
# A connection or a cursor that its class makes, and not connect() or cursor().
BY_CLASS = re.compile(
    rf"psycopg2\.ext(?:ensions|ras)\.(?:(?:\w*C|c)onnection\(\)\.(?:lobject|cursor\(\)\.{COPIES})"
    rf"|(?:\w*C|c)ursor\(\)\.{COPIES})"
)


def not_emulated(module: Module, facts: Facts) -> Found:
    """Find COPY and large objects on what a class of psycopg2 makes."""
    for call in module.calls:
        if BY_CLASS.fullmatch(call.name) and not call.site.is_command:
            yield NOT_EMULATED, call.node, f"{call.name}()"
