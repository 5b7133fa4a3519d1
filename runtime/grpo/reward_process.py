"""A process that computes a job's rewards: `python -m runtime.grpo.reward_process DESCRIPTOR PARENT`.

It gets (task, seed, folder) and answers True or what is wrong; then, again and again, `("score", example, response)`, which it
answers with (reward, seconds), or `("prompts", count, position)`, which it answers with the task's examples; or with what is wrong.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.jobs.tasks import Rewarding, make_rewarding, score


def serve(line: Connection) -> None:
    """Answer until the other end is closed."""
    try:
        rewarding = make_rewarding(*line.recv())
        line.send(True)
        while True:
            _answer(rewarding, line)
    except InputError as error:
        line.send(str(error))
    except (EOFError, ConnectionError):
        pass


def _answer(rewarding: Rewarding, line: Connection) -> None:
    what, *arguments = line.recv()
    began = time.monotonic()
    try:
        if what == "score":
            line.send((score(rewarding, *arguments), time.monotonic() - began))
        else:
            line.send(_prompts(rewarding, *arguments))
    except RuntimeError as error:
        traceback.print_exc()  # into the job's log
        sys.stderr.flush()
        line.send(f"{error}; the job's log has more")


def _prompts(task: object, count: int, position: int) -> list[object]:
    try:
        return list(task.prompts(count, position))  # type: ignore[attr-defined]
    except Exception as error:  # whatever a user's class raises
        problem = one_line(f"{type(error).__name__}: {error}")
        raise RuntimeError(f"prompts({count}, {position}) of the task fails: {problem}") from error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
