"""Processes that tests start."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its overloads tell text from bytes, which those of a subclass do not
    Child = subprocess.Popen
else:

    class Child(subprocess.Popen):
        """A process that is killed at the end of its `with` block, also where an assertion fails: `Popen` would wait for it."""

        def __exit__(self, *error: Any) -> None:
            self.kill()
            super().__exit__(*error)
