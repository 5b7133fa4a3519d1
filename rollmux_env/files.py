"""Bounded reading of files that a user names, shipped examples included, and atomic writing."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.progress import say_read
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import describe, one_line

MB = 1 << 20
TEXT_BYTES = 64 * MB  # largest scenario, job file or configuration
DATA_BYTES = 256 * MB  # largest trace or file of prompts
_OTHER_KINDS = {
    b"\x1f\x8b": "is packed by gzip: unpack it first (gunzip)",
    b"BZh": "is packed by bzip2: unpack it first (bunzip2)",
    b"\xfd7zXZ\x00": "is packed by xz: unpack it first (unxz)",
    b"\x28\xb5\x2f\xfd": "is packed by zstd: unpack it first (unzstd)",
    b"PK\x03\x04": "is a zip archive: unpack it first (unzip)",
    codecs.BOM_UTF32_LE: "is UTF-32, not UTF-8: save it as UTF-8",
    codecs.BOM_UTF32_BE: "is UTF-32, not UTF-8: save it as UTF-8",
    codecs.BOM_UTF16_LE: "is UTF-16, not UTF-8: save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16, not UTF-8: save it as UTF-8",
}
"""First bytes of files that are not UTF-8, with the problem and its remedy. Prefixes of other entries come later."""
_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}

_HERE = Path(__file__).parent
EXAMPLES = next((here for here in (_HERE / "examples", _HERE.parent / "examples") if here.is_dir()), _HERE)
"""Folder of the examples: in the package, or beside it in a clone."""


def read_file(path: str | Path, most_bytes: int = TEXT_BYTES) -> bytes:
    """Read a regular file, also through a symbolic link. Other kinds are not opened: a pipe may block, and a device may never end.

    Args:
        path: Path of the file.
        most_bytes: Largest size, in bytes.

    Raises:
        InputError: If it is not a regular file, larger than `most_bytes`, or cannot be read.
    """
    name = one_line(str(path), 4096)
    check_regular(path)
    with _said_of(name), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced after the check
            raise InputError(f"{name}: is not a regular file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise InputError(f"{name}: is larger than {most_bytes // MB} MB")
    return data


@contextlib.contextmanager
def _said_of(what: str) -> Iterator[None]:
    """Turn errors of the operating system about a file into an `InputError` that begins with `what`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}") from None


def private_folder(path: Path) -> None:
    """Make a folder and its missing parents, accessible only to their owner. An existing folder keeps its permissions.

    Raises:
        OSError: If it cannot be made.
    """
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def make_private(folder: Path) -> None:
    """Make a folder and everything in it accessible only to its owner.

    Raises:
        OSError: If a file belongs to another user.
    """
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def check_regular(path: str | Path) -> None:
    """Check that a path is a regular file, without opening it.

    Raises:
        InputError: If it is something else, or cannot be inspected.
    """
    name = one_line(str(path), 4096)
    with _said_of(name):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "a device")
        raise InputError(f"{name}: is {kind}, not a regular file")


def read_text(path: str | Path, most_bytes: int = TEXT_BYTES) -> str:
    """Read a text file, with or without a byte order mark. Line endings are kept.

    Every text file of a user is read by this function.

    Args:
        path: Path of the file.
        most_bytes: Largest size, in bytes.

    Raises:
        InputError: As in `read_file`, or if the file is not UTF-8. The message names another encoding or a compression.
    """
    data, name = read_file(path, most_bytes), one_line(str(path), 4096)
    for mark, kind in _OTHER_KINDS.items():
        if data.startswith(mark):
            raise InputError(f"{name}: {kind}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}: line {line}: is not a text file (UTF-8): it holds the byte 0x{data[error.start]:02x}") from None


def text_lines(path: str | Path) -> Iterator[str]:
    """Return the lines of a text file. They end with a line feed, which is kept.

    Raises:
        InputError: As in `read_text`.
    """
    return iter(io.StringIO(read_text(path, DATA_BYTES), newline="\n"))


def json_lines(path: str | Path, half: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a text file that are not empty, each a JSON object, with their numbers from 1.

    Args:
        path: Path of the file.
        half: Whether the last line may be incomplete, because its writer was stopped; it is then left out.

    Raises:
        InputError: As in `read_text`, or if a line is not a JSON object.
    """
    lines = [*text_lines(path)]
    for number, line in enumerate(lines, 1):
        where = f"{one_line(str(path), 4096)}: line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if half and number == len(lines) > 1:
                say_read(path, f"line {number:,}, the last, is half-written and left out")
                return
            limit = f" that can be read: {one_line(str(error))}" if type(error) is ValueError else ""  # Python's limit on digits
            raise InputError(f"{where}: is not JSON{limit}") from None
        if not isinstance(value, dict):
            raise InputError(f"{where}: must be a mapping, not {describe(value)}")
        yield number, value


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: As in `read_text`, or if it is not JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{one_line(str(path), 4096)}: is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{one_line(str(path), 4096)}: is not JSON: {one_line(str(error), 200)}") from None


def private_opener(path: str, flags: int) -> int:
    """Open a file, as an `opener` of `open`. A new file is accessible only to its owner."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Wait until a file, or the names of the files in a folder, are on the disk.

    Raises:
        OSError: If it does not exist, or the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_data(source: Path, target: Path) -> None:
    """Copy a file. The holes of a sparse file take no space in the copy either.

    Raises:
        OSError: If the source cannot be read, or the target exists or cannot be written.
    """
    with source.open("rb") as whole, target.open("xb") as copy:
        size, at = os.fstat(whole.fileno()).st_size, 0
        copy.truncate(size)
        while at < size:
            try:
                at = os.lseek(whole.fileno(), at, os.SEEK_DATA)
            except OSError:  # there is no more data
                break
            hole = os.lseek(whole.fileno(), at, os.SEEK_HOLE)
            copy.seek(at)
            while at < hole:
                at += os.sendfile(copy.fileno(), whole.fileno(), at, hole - at)


def write_whole(path: str | Path, content: str | bytes, private: bool = False) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part.

    The content is written to a temporary file in the same folder, which then replaces the target. A symbolic link keeps its target.
    A file that is not regular (a pipe, a device) is written directly.

    Args:
        path: Path of the file.
        content: Content; text is written as UTF-8.
        private: Whether a new file is accessible only to its owner. An existing file keeps its permissions.

    Raises:
        InputError: If the folder is missing or not writable, or the target is a directory.
    """
    data = content.encode() if isinstance(content, str) else content
    name = one_line(str(path), 4096)
    target: Path | None = None
    try:
        with _said_of(f"{name}: cannot be written"):
            real = Path(os.path.realpath(path))
            if real.is_dir():
                raise InputError(f"{name}: is a directory")
            if real.exists() and not real.is_file():
                real.write_bytes(data)
                return
            target = real.with_name(f".rollmux-{secrets.token_hex(6)}.tmp")
            with open(target, "xb", opener=private_opener if private else None) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if real.exists():
                target.chmod(real.stat().st_mode & 0o777)
            target.replace(real)
    finally:
        if target is not None:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)


def example_names() -> list[str]:
    """Return the names of the examples, without a suffix."""
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def find_file(path: str | Path) -> Path:
    """Return the file of a path, or, if there is none, the example of that name (`quickstart`).

    A path into a folder is returned unchecked.

    Raises:
        InputError: If there is neither. The message suggests a similar name.
    """
    path = Path(path)
    if path.parent not in (Path(), Path("examples")) or os.path.lexists(path):
        return path
    name = path.name.removesuffix(".yaml")
    if name in example_names():
        return EXAMPLES / f"{name}.yaml"
    near = did_you_mean(name, example_names())
    raise InputError(f"{one_line(str(path), 4096)}: No such file or directory, and no example of that name{near}")


def yaml_text(data: Any) -> str:
    """Return YAML 1.2 with each innermost mapping on one line, in its own order."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 132
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()
