"""The examples that come with RollMux: their list, and copies for the user to change."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.files import EXAMPLES, copy_data
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import one_line

_SUFFIXES = (".py", ".yaml")


@dataclass(frozen=True)
class Example:
    """The files of one name in `examples/`.

    Attributes:
        name: Name of the example.
        about: First sentence of its comment or docstring.
        files: Paths of its files, then of the files that they name.
    """

    name: str
    about: str
    files: tuple[Path, ...]

    @property
    def is_found(self) -> bool:
        """Whether commands find it by its name, as they find scenarios and job files. Other examples have to be copied first."""
        return any(file.stem == self.name and file.suffix == ".yaml" for file in self.files)


def examples() -> list[Example]:
    """Return all examples by name."""
    shipped = {path.name: path for path in sorted(EXAMPLES.iterdir()) if path.suffix in _SUFFIXES and path.stem != "__init__"}
    listed = []
    for name in sorted({path.stem for path in shipped.values()}):
        own = [shipped[f"{name}{suffix}"] for suffix in reversed(_SUFFIXES) if f"{name}{suffix}" in shipped]
        text = "\n".join(path.read_text(encoding="utf-8") for path in own)
        named = [path for path in shipped.values() if path not in own and _names(text, path)]
        listed.append(Example(name, _about(own[0]), (*own, *named)))
    return listed


def copy_example(name: str, folder: Path) -> list[Path]:
    """Copy the files of an example into a folder, which is made if it is missing, and return the paths of the copies.

    Args:
        name: Name of the example.
        folder: Folder of the copies.

    Raises:
        InputError: If there is no such example, one of the files exists already, or a file cannot be written.
    """
    known = {example.name: example for example in examples()}
    if name not in known:
        raise InputError(f"{one_line(name)}: no example has this name{did_you_mean(name, known)}; `rollmux examples` lists them")
    copies = {file: folder / file.name for file in known[name].files}
    for copy in copies.values():
        if os.path.lexists(copy):
            raise InputError(f"{copy}: is there already, and nothing was copied")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, copy in copies.items():
            copy_data(file, copy)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    return [*copies.values()]


def _names(text: str, path: Path) -> bool:
    """Return whether a text names a file, or a class in it as in `own_job:Evolution`."""
    return re.search(rf"\b{path.stem}(\{path.suffix}\b|:[A-Z])", text) is not None


def _about(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comment = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = "\n".join(line.removeprefix("#").strip() for line in re.findall(r"\A(?:#.*\n)*", text)[0].splitlines())
    return re.split(r"[.;](?:\s|$)|: (?=`|docs/|rollmux )", " ".join(comment.split()))[0]
