"""The web page of a service: one HTML file that reads `/v1/status` and `/v1/events` with a token. It changes nothing."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from rollmux_env.report.html import one_file


@cache
def page_html() -> str:
    """Return the page that a service answers at `/`."""
    return one_file(files("runtime.service.page").joinpath("index.html").read_text(encoding="utf-8"))
