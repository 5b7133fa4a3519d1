"""The examples that come with RollMux: what there is, and copies of them to change."""

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
    """What goes by one name in `examples/`.

    Attributes:
        about: the first sentence of its comment or docstring. files: its own, then those that they name; of each, the path.
    """

    name: str
    about: str
    files: tuple[Path, ...]

    @property
    def is_found(self) -> bool:
        """Whether a command takes it by its name, as it takes scenarios and job files, or it has to be copied first."""
        return any(file.stem == self.name and file.suffix == ".yaml" for file in self.files)


def examples() -> list[Example]:
    """All of them, by name."""
    shipped = {path.name: path for path in sorted(EXAMPLES.iterdir()) if path.suffix in _SUFFIXES and path.stem != "__init__"}
    listed = []
    for name in sorted({path.stem for path in shipped.values()}):
        own = [shipped[f"{name}{suffix}"] for suffix in reversed(_SUFFIXES) if f"{name}{suffix}" in shipped]
        text = "\n".join(path.read_text(encoding="utf-8") for path in own)
        named = [path for path in shipped.values() if path not in own and _names(text, path)]
        listed.append(Example(name, _about(own[0]), (*own, *named)))
    return listed


def copy_example(name: str, folder: Path) -> list[Path]:
    """Copy the files of an example into a folder, which is made where it is missing; the paths of the copies.

    Raises:
        InputError: there is no such example, a file of one of these names is there already, or cannot be written. One line.
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
    """Whether a text names a file, or a class in it as a user does: `own_job:Evolution`."""
    return re.search(rf"\b{path.stem}(\{path.suffix}\b|:[A-Z])", text) is not None


def _about(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comment = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = "\n".join(line.removeprefix("#").strip() for line in re.findall(r"\A(?:#.*\n)*", text)[0].splitlines())
    return re.split(r"[.;](?:\s|$)|: (?=`|docs/|rollmux )", " ".join(comment.split()))[0]
