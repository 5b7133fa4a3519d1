"""What was skipped, said at the end of the tests: each reason once, and the line that installs what Debian has of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

_DEBIAN = re.compile(r"\(Debian: ([a-z0-9.+-]+)\)")  # so does a reason name the package that would help


def told(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that tell it.

    Args:
        skipped: file and reason of each test.
    """
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file, reason in skipped:
        files[reason.removeprefix("Skipped: ")][file] += 1
    lines = []
    for reason, count in sorted(files.items(), key=lambda found: (-found[1].total(), found[0])):
        names = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in sorted(count.items()))
        lines.append(f"{count.total():4}  {reason}: {names}")
    if packages := sorted({name for reason in files for name in _DEBIAN.findall(reason)}):
        lines.append(f"make packages (as root, on Debian or Ubuntu) installs what is missing: {' '.join(packages)}")
    return lines
