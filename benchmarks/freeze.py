"""Write the frozen scenario files of benchmarks/scenarios, or check them.

    python benchmarks/freeze.py            rewrite the files and SHA256SUMS
    python benchmarks/freeze.py --check    exit 1 if a file does not have its hash, or the generator produces other bytes

Published numbers are measured on these files. `sha256sum -c SHA256SUMS` checks them too.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from rollmux_env.files import write_whole
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.text import to_json

FOLDER = Path(__file__).parent / "scenarios"
SUMS = "SHA256SUMS"
FROZEN = {
    f"{name}-{stays}-seed0.json": (name, WorkloadOptions(stays=stays))
    for name in ("production", "mixed")
    for stays in ("fixed", "iterations")
}


def contents() -> dict[str, bytes]:
    """Return the bytes of each file, by its name, as the generators produce them. The file of hashes is the last one."""
    files = {name: to_json(make_workload(*arguments)).encode() for name, arguments in FROZEN.items()}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    return {**files, SUMS: sums.encode()}


def problems(folder: Path = FOLDER) -> list[str]:
    """Return a line about each problem with the frozen files: wrong hashes first, then other bytes than the generators produce."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return [f"{folder / SUMS}: {error.strerror}"]
    wrong = []
    for line in lines:
        digest, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file():
            wrong.append(f"{path}: is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            wrong.append(f"{path}: does not have the hash in {SUMS}")
    for name, data in contents().items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            wrong.append(f"{path}: the generator gives other bytes")
    return wrong


def main() -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(description="Write the frozen scenario files, or check them.")
    parser.add_argument("--check", action="store_true", help="only check hashes and bytes")
    if parser.parse_args().check:
        lines = problems()
        print("\n".join(lines) if lines else f"{len(FROZEN)} scenario files are as frozen")
        return 1 if lines else 0
    FOLDER.mkdir(exist_ok=True)
    for name, data in contents().items():
        write_whole(FOLDER / name, data)
        print(f"{FOLDER / name}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
