"""Folders that commands write: their writer's lock, and one HTML page with sortable tables and plots."""

from __future__ import annotations

import contextlib
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from rich.console import RenderableType

from rollmux_env.errors import InputError
from rollmux_env.files import private_folder
from rollmux_env.locks import only_writer
from rollmux_env.report.html import one_file, to_html
from rollmux_env.report.tables import make_table


def make_folder(path: Path, private: bool = False, option: str = "--out ") -> None:
    """Make an output folder before the work whose results it receives.

    Args:
        path: Path of the folder.
        private: Whether only its owner may read it. An existing folder keeps its permissions.
        option: Option that names the folder, with a blank at its end, or an empty string for an argument.

    Raises:
        InputError: If the folder cannot be made or written.
    """
    try:
        if private:
            private_folder(path)
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{option}{path}: {getattr(error, 'strerror', None) or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{option}{path}: cannot be written")


@contextlib.contextmanager
def results_folder(folder: Path | None, file: str, overwrite: bool) -> Iterator[None]:
    """Make a folder for results and hold its writer's lock until they are written.

    Args:
        folder: Folder, or None if nothing is written.
        file: Name of the file of results.
        overwrite: Whether existing results may be replaced.

    Raises:
        InputError: If the folder cannot be made, has another writer, or holds results that may not be replaced.
    """
    if folder is None:
        yield
        return
    make_folder(folder)
    with only_writer(folder):
        if (folder / file).exists() and not overwrite:
            raise InputError(f"--out {folder}: holds results already ({file}); choose another folder, or --overwrite")
        yield


def results_page(
    title: str, table: RenderableType, plots: Mapping[str, bytes], more: str = "", made_by: Mapping[str, str] | None = None
) -> str:
    """Return a page with a table, plots and further sections.

    Args:
        title: Title of the page.
        table: Table that a terminal shows.
        plots: Plots by file name.
        more: HTML of further sections.
        made_by: Versions and hashes by name, or None.
    """
    parts = [f'<section class="card">{to_html(table)}</section>', more]
    if plots:
        pictures = "".join(_figure(name, data) for name, data in plots.items())
        parts.append(f'<section class="card"><h2>Plots</h2><div class="plots">{pictures}</div></section>')
    if made_by:
        versions = make_table("made with", "version, or hash", left=2)
        for name, value in made_by.items():
            versions.add_row(name, value)
        parts.append(f'<section class="card">{to_html(versions)}</section>')
    template = files("rollmux_env.report").joinpath("results.html").read_text(encoding="utf-8")
    page = one_file(template)  # before any content is inserted, so that only the template's scripts are allowed
    return page.replace("<!-- title -->", escape(title)).replace("<!-- body -->", "".join(parts), 1)


def _figure(name: str, data: bytes) -> str:
    stem, _, kind = name.rpartition(".")
    words = stem.replace("_", " ")
    source = f"data:image/{'svg+xml' if kind == 'svg' else kind};base64,{b64encode(data).decode()}"
    if kind == "pdf":  # browsers do not show a PDF as an image
        return f'<figure><figcaption>{escape(words)}: <a href="{escape(name)}">{escape(name)}</a></figcaption></figure>'
    return f'<figure><figcaption>{escape(words)}</figcaption><img src="{source}" alt="{escape(words)}"></figure>'
