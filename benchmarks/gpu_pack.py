"""Pack what `gpu_kit.py` needs on a machine with a GPU and no network: this tree, and the packages that the machine lacks.

python benchmarks/gpu_pack.py --there packages.txt [--to gpu-kit.tar.gz] [--python 3.12]

`packages.txt` is the output of `python -m pip list` on that machine. It must contain PyTorch. The missing packages come from the
package index that pip uses here, for x86-64 Linux, in the versions that are installed here. Ray comes without its jars, the pages
of its dashboard and its libraries, so that everything fits into 64 MiB; `rollmux run` needs none of them. No model is packed: the
kit makes its models. On that machine:

    mkdir kit && tar -xzf gpu-kit.tar.gz -C kit && cd kit && PYTHONPATH=site python benchmarks/gpu_kit.py --out results
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOTS = ("rollmux[run]", "pytest", "hypothesis")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
LEFT_OUT = ("jars", "dashboard/client", "rllib", "data", "serve", "tune", "train", "llm", "air", "workflow", "cpp")  # in Ray
NOT_PACKED = ("docs/", "examples/notebooks/")  # folders of the tree
MOST_BYTES = 64 << 20


def names_in(text: str) -> set[str]:
    """Return the names in the output of `pip list` or `pip freeze`, in their canonical form."""
    words = [re.split(r"[\s=@]", line.strip())[0] for line in text.splitlines()]
    return {canonicalize_name(word) for word in words if re.match(r"[A-Za-z0-9]", word) and word != "Package"}


def missing(
    roots: Sequence[str], there: Collection[str], python: str, requirements_of: Callable[[str], Sequence[str] | None]
) -> set[str]:
    """Return the names of the packages that must be packed.

    Args:
        roots: Requirements.
        there: Names of packages that are installed on the machine. Their own requirements are assumed to be installed too.
        python: Version of Python on the machine, such as 3.12.
        requirements_of: Function that returns the requirements of a package, by its name.
    """
    packages, left = set[str](), [Requirement(root) for root in roots]
    requirements = set[str]()
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in there or str(wanted) in requirements:
            continue
        requirements.add(str(wanted))
        packages.add(name)
        for text in requirements_of(name) or ():
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"python_version": python, "extra": one}) for one in extras):
                left.append(needed)
    return packages


def bring(names: Collection[str], python: str, folder: Path) -> None:
    """Put packages into a folder, in the versions that are installed here."""
    pins = [f"{name}=={metadata.version(name)}" for name in sorted(names)]
    print(f"packages: {' '.join(pins)}", flush=True)
    options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *options, *pins], check=True)
    for name in LEFT_OUT:
        shutil.rmtree(folder / "ray" / name, ignore_errors=True)


def tree() -> list[str]:
    """Return the files of the tree that are packed."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if not name.startswith(NOT_PACKED) and (ROOT / name).is_file()]


def main() -> None:
    """Write the archive."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--there", type=Path, required=True, help="file with the packages of the machine")
    options.add_argument("--to", type=Path, default=Path("gpu-kit.tar.gz"), help="archive to write")
    options.add_argument("--python", default="3.12", help="version of Python on the machine")
    asked = options.parse_args()
    there = names_in(asked.there.read_text())
    if "torch" not in there:
        options.error(f"{asked.there}: names no torch, which is too large to bring")
    names = missing(ROOTS, there, asked.python, metadata.requires) - {"rollmux"}
    new = asked.to.with_name(f"{asked.to.name}.new")
    with tempfile.TemporaryDirectory() as site:
        bring(names, asked.python, Path(site))
        with tarfile.open(new, "w:gz") as archive:
            for name in tree():
                archive.add(ROOT / name, name)
            archive.add(site, "site")
    size = new.stat().st_size
    if size > MOST_BYTES:
        new.unlink()
        raise SystemExit(f"the archive would have {size / 2**20:.0f} MiB; {MOST_BYTES >> 20} MiB is the most")
    new.replace(asked.to)
    print(f"{asked.to}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
