"""Folders that RollMux makes outside of a user's own, and how it knows them again before it ends or removes anything there.

What a file says is there is no proof: a folder is ours where its name, parent, owner and inode are those of one that we made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import private_opener, read_file
from rollmux_env.validation_errors import one_line

PREFIX = "rollmux-ray-"  # of the names of Ray's folders
SPARE = "rollmux-run-"  # of the names of folders of runs that are to keep nothing
_NOTE = "folder.json"  # in a spare folder
SHORT = Path("/tmp")  # paths of Ray's sockets must stay below 108 characters, which a user's TMPDIR may use up


@dataclass(frozen=True)
class OwnFolder:
    """A folder of ours, as it was when it was made.

    Attributes:
        path: absolute. device, inode: which folder that was; 0 where an older RollMux did not note them.
    """

    path: str
    device: int = 0
    inode: int = 0

    def doubt(self) -> str | None:
        """Why this is not known to be ours; None where it is, and what is below it may be ended and removed."""
        path = Path(self.path)
        if not path.is_absolute() or os.path.normpath(self.path) != self.path or not path.name.startswith((PREFIX, SPARE)):
            return f"its name is none that RollMux gives, {SHORT}/{PREFIX}..."
        if path.parent not in _parents():
            return f"it is not in {SHORT}"
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            return "there is no such folder"
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        if status.st_uid != os.geteuid():
            return "it is another user's"
        if not self.inode:
            return "an older RollMux did not note which folder it made"
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            return "it is another folder than the one that was made"
        return None

    def remove(self) -> None:
        """Remove it with all that is in it, if it is ours."""
        if self.doubt() is None:
            shutil.rmtree(self.path, ignore_errors=True)

    def leftover(self) -> str | None:
        """A line on what is not touched and may have to be removed by hand; None where there is nothing in doubt."""
        doubt = self.doubt()
        if doubt is None or not os.path.isabs(self.path) or not os.path.lexists(self.path):
            return None
        name = one_line(self.path, 4096)
        return f"{name}: is left as it is, for {doubt}; if it is of a Ray of RollMux's, end its processes and remove it by hand"


def make_own_folder() -> OwnFolder:
    """Make a folder with a short path."""
    return _as_made(tempfile.mkdtemp(prefix=PREFIX, dir=SHORT if SHORT.is_dir() else None))


@contextlib.contextmanager
def spare_folder() -> Iterator[Path]:
    """A folder for as long as it is needed. It holds a note of which folder it is, locked until then."""
    own = _as_made(tempfile.mkdtemp(prefix=SPARE))
    path = Path(own.path)
    with open(path / _NOTE, "xb", opener=private_opener) as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.write(TypeAdapter(OwnFolder).dump_json(own))
        note.flush()
        try:
            yield path
        finally:
            own.remove()


def left_folders() -> Iterator[OwnFolder]:
    """Spare folders whose process has ended without removing them: the note in them says that they are ours, and nobody locks it.

    Each is locked until the next is asked for.
    """
    for path in sorted({path for parent in _parents() for path in parent.glob(f"{SPARE}*")}):
        with contextlib.suppress(InputError, OSError, ValidationError):
            own = TypeAdapter(OwnFolder).validate_json(read_file(path / _NOTE), strict=True)
            if own.path == str(path) and own.doubt() is None:
                with (path / _NOTE).open("rb") as note:
                    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield own


def _as_made(path: str) -> OwnFolder:
    status = os.lstat(path)
    return OwnFolder(path, status.st_dev, status.st_ino)


def _parents() -> tuple[Path, ...]:
    return SHORT, Path(tempfile.gettempdir())
