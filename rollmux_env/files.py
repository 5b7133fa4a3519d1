"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    The content goes to a temporary file in the same folder, which then takes the target's place. A symbolic link keeps
    pointing where it does; what is no regular file (a pipe, a device) is written to as it is.

    Args:
        content: text is written as UTF-8.

    Raises:
        InputError: the folder is missing or not writable, or the target is a directory; one line.
    """
    data = content.encode() if isinstance(content, str) else content
    name = one_line(str(path), 4096)
    target: Path | None = None
    try:
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_file() and not real.is_dir():
            real.write_bytes(data)
            return
        if real.is_dir():
            raise InputError(f"{name}: is a directory")
        target = real.with_name(f".rollmux-{secrets.token_hex(6)}.tmp")
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if real.exists():
            target.chmod(real.stat().st_mode & 0o777)
        target.replace(real)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{name}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if target is not None:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
