"""Runs the commands that standard input lists, each in a child of this process, and prints status and output of each as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from typing import Any

import rollmux


def outcome(words: list[str]) -> dict[str, Any]:
    """Run one command in a child, which shares what is imported here and leaves nothing behind."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _run(words)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return {"status": os.waitstatus_to_exitcode(status), "out": out.read(), "err": err.read()}


def _run(words: list[str]) -> None:
    sys.argv = ["rollmux", *words]
    status: Any = 70
    try:
        rollmux.main()
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in ("policies.experiments", "rollmux_env.report.tables", "runtime.service.client", "runtime.journal.audit"):
        importlib.import_module(name)  # once, not in each child
    rollmux.command()
    json.dump([outcome(words) for words in json.load(sys.stdin)], sys.stdout)
