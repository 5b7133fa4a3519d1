"""The page of a service: one HTML file that reads `/v1/status` and `/v1/events` with a token, and changes nothing."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from rollmux_env.report.html import one_file


@cache
def page_html() -> str:
    """What a service answers at `/`."""
    return one_file(files("runtime.service.page").joinpath("index.html").read_text(encoding="utf-8"))
