"""Runs commands of RollMux in environments with some extras installed, for `tests.installations.Walker`.

Each line of standard input has an environment and its commands; a line of standard output has their outcomes. What no extra brings
is imported once, here. A child of each environment imports what its extras bring, and each command is a child of that.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
from typing import Any, NoReturn

import typer

import rollmux

SHARED = ["matplotlib.pyplot", "rich.markdown", "typer.rich_utils", "policies.commands.bench", "rollmux_env.report.plots"]
SHARED += ["runtime.compare", "runtime.journal.audit", "runtime.service.client", "runtime.service.report"]
OF_EXTRAS = ("torch", "ray", "starlette")


def walk(asked: dict[str, Any]) -> NoReturn:
    """Become a Python in which some modules are not installed, and print what comes of the commands there.

    Args:
        asked: Variables of the environment, the working folder and the commands.
    """
    os.chdir(asked["folder"])
    os.environ.update(asked["env"])
    hiding: Any = importlib.import_module("sitecustomize")  # the one beside this file
    hiding.HIDDEN = frozenset(asked["env"]["ROLLMUX_TEST_HIDDEN"].split(","))
    for name in OF_EXTRAS:
        if name not in hiding.HIDDEN:
            importlib.import_module(name)
    gc.freeze()
    print(json.dumps([outcome(words) for words in asked["words"]]), flush=True)
    os._exit(0)


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


def _run(words: list[str]) -> NoReturn:
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
    for name in SHARED:
        importlib.import_module(name)
    rollmux.replay("quickstart", "rollmux")  # loads what is compiled
    typer.main.get_command(rollmux.command())
    gc.freeze()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            walk(json.loads(line))
        os.waitpid(child, 0)
