"""Whether an engine has been loaded on this machine since it started, and so found its caches filled.

A first load compiles kernels and reads libraries and weights from the disk: its seconds say little about those that follow. A mark
in the cache folder says that there was one; it counts until the machine starts anew or the engine's own caches are deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from getpass import getuser
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.files import read_text, write_whole
from runtime.jobs.models import cache_folder
from runtime.machine import boot_id


def has_loaded(key: str) -> bool:
    """Whether an engine was loaded before, by its `profiles.engine_key`; False where nobody knows."""
    try:
        boot, folders = json.loads(read_text(_mark(key)))
        return boot == boot_id() and all(Path(folder).is_dir() for folder in folders)
    except (InputError, OSError, ValueError, TypeError):
        return False


def note_loaded(key: str) -> None:
    """An engine has been loaded. A cache folder that cannot be written keeps no mark."""
    folders = [str(folder) for folder in _engine_caches() if folder.is_dir()]
    with contextlib.suppress(InputError, OSError):
        write_whole(_mark(key), json.dumps([boot_id(), folders]))


def _mark(key: str) -> Path:
    return cache_folder("loaded") / f"{key}.json"


def _engine_caches() -> list[Path]:
    """Where vLLM and torch keep what they compile."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    vllm, torch = os.environ.get("VLLM_CACHE_ROOT"), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    usual = Path(tempfile.gettempdir()) / f"torchinductor_{getuser()}"
    return [Path(vllm) if vllm else home / "vllm", Path(torch) if torch else usual]
