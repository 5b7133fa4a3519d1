"""Folders that RollMux makes outside of a user's own, and the proof that a folder is one of them before anything in it is removed.

A file's content is no proof: a folder is RollMux's if its name, parent, owner and inode are those of one that RollMux made.
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

PREFIX = "rollmux-ray-"  # prefix of the names of Ray's folders
SPARE = "rollmux-run-"  # prefix of the names of temporary folders of runs
_NOTE = "folder.json"  # file in a temporary folder that identifies it
SHORT = Path("/tmp")  # paths of Ray's sockets must be shorter than 108 characters; TMPDIR may be too long


@dataclass(frozen=True)
class OwnFolder:
    """A folder that RollMux made.

    Attributes:
        path: Absolute path.
        device: Device number of the folder, or 0 if an older RollMux did not record it.
        inode: Inode of the folder, or 0 if an older RollMux did not record it.
    """

    path: str
    device: int = 0
    inode: int = 0

    @property
    def inside(self) -> str:
        """Path of a folder in it for Ray, which makes that writable for every user; this folder's permissions keep them out."""
        return f"{self.path}/ray"

    def problem(self) -> str | None:
        """Return the reason why this folder may not be RollMux's, or None if it is and may be removed."""
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
        """Remove the folder with its contents, if it is certainly RollMux's."""
        if self.problem() is None:
            shutil.rmtree(self.path, ignore_errors=True)

    def leftover(self) -> str | None:
        """Return a line about a folder that is left alone and may have to be removed by hand, or None if there is no doubt."""
        doubt = self.problem()
        if doubt is None or not os.path.isabs(self.path) or not os.path.lexists(self.path):
            return None
        name = one_line(self.path, 4096)
        return f"{name}: is left as it is, for {doubt}; if it is of a Ray of RollMux's, end its processes and remove it by hand"


def make_own_folder() -> OwnFolder:
    """Make a folder with a short path that no other user can enter."""
    return _as_made(tempfile.mkdtemp(prefix=PREFIX, dir=SHORT if SHORT.is_dir() else None))


@contextlib.contextmanager
def spare_folder() -> Iterator[Path]:
    """Yield a temporary folder. It contains a file that identifies it, which is locked as long as it is in use."""
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
    """Yield temporary folders whose process has ended without removing them: they identify themselves, and are not locked.

    Each is locked until the next one is requested.
    """
    for path in sorted({path for parent in _parents() for path in parent.glob(f"{SPARE}*")}):
        with contextlib.suppress(InputError, OSError, ValidationError):
            own = TypeAdapter(OwnFolder).validate_json(read_file(path / _NOTE), strict=True)
            if own.path == str(path) and own.problem() is None:
                with (path / _NOTE).open("rb") as note:
                    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield own


def _as_made(path: str) -> OwnFolder:
    status = os.lstat(path)
    return OwnFolder(path, status.st_dev, status.st_ino)


def _parents() -> tuple[Path, ...]:
    return SHORT, Path(tempfile.gettempdir())
