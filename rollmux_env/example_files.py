"""The examples that come with RollMux, by name: commands find them where no file of that name is."""

from __future__ import annotations

import os
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import one_line

_HERE = Path(__file__).parent
FOLDER = next((here for here in (_HERE / "examples", _HERE.parent / "examples") if here.is_dir()), _HERE)
"""Where they are: in the package, or beside it in a clone."""


def example_names() -> list[str]:
    """Their names, without a suffix."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_file(path: str | Path) -> Path:
    """The file that is meant: that of the path, or, where there is none, the example of that name (`quickstart`).

    Raises:
        InputError: there is neither; one line with a name that is near. A path in a folder is not looked at.
    """
    path = Path(path)
    if path.parent not in (Path(), Path("examples")) or os.path.lexists(path):
        return path
    name = path.name.removesuffix(".yaml")
    if name in example_names():
        return FOLDER / f"{name}.yaml"
    near = did_you_mean(name, example_names())
    raise InputError(f"{one_line(str(path), 4096)}: No such file or directory, and no example of that name{near}")
