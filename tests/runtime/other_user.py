"""What another user of this machine can do: `python other_user.py WHAT`, started by root, becomes that user and tries.

Paths are listed by who may list them, so that a folder which only hides its entries hides nothing here.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

UNUSED = 65534  # nobody's id, and its group's
CANNOT = "" if os.geteuid() == 0 else "only root can become another user"
_COMMAND = [sys.executable, str(Path(__file__))]


def below(folder: Path) -> list[Path]:
    """A folder and all that is in it."""
    return [folder, *folder.rglob("*")]


def opened_by(pids: Iterable[int]) -> list[Path]:
    """What processes have open, by the paths at which others find it, segments of shared memory too; and their memory itself."""
    found = []
    for entry in (Path(f"/proc/{pid}") for pid in pids):
        links = [link for name in ("fd", "map_files") for link in (entry / name).iterdir()]
        shared = [Path(os.readlink(link)) for link in links if os.path.lexists(link)]
        found += [entry / "mem", entry / "environ", *links, *(path for path in shared if path.is_relative_to("/dev/shm"))]
    return found


def reach(paths: Iterable[Path]) -> dict[str, str]:
    """Those of some paths that another user can read, write or connect to, and what of it."""
    asked = json.dumps([str(path) for path in paths])
    answer = subprocess.run([*_COMMAND, "reach"], input=asked, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(answer))


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port of 127.0.0.1 at which another user listens."""
    with subprocess.Popen([*_COMMAND, "listen"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _try(path: str) -> str:
    """What can be done with a path: some of `read`, `write` and `connect`."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as client:
            return "" if client.connect_ex(path) else "connect"
    if stat.S_ISDIR(mode):
        ways = {"read": os.R_OK, "write": os.W_OK}
        return " ".join(name for name, way in ways.items() if os.access(path, way))
    found = []
    for name, how in {"read": os.O_RDONLY, "write": os.O_WRONLY}.items():
        try:
            os.close(os.open(path, how | os.O_NONBLOCK))
            found.append(name)
        except OSError:
            continue
    return " ".join(found)


if __name__ == "__main__":
    os.setgroups([])
    os.setgid(UNUSED)
    os.setuid(UNUSED)
    if sys.argv[1] == "reach":
        print(json.dumps({path: way for path in json.load(sys.stdin) if (way := _try(path))}))
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            print(server.getsockname()[1], flush=True)
            sys.stdin.read()
