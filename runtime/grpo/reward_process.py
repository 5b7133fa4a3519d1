"""A process that computes a job's rewards: `python -m runtime.grpo.reward_process DESCRIPTOR PARENT`.

It gets (task, seed, folder) and answers True or what is wrong; then (example, response), and answers (reward, seconds) or what is
wrong, again and again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from rollmux_env.errors import InputError
from runtime.jobs.tasks import make_task, score


def serve(line: Connection) -> None:
    """Answer until the other end is closed."""
    try:
        task = make_task(*line.recv())
        line.send(True)
        while True:
            example, response = line.recv()
            began = time.monotonic()
            try:
                line.send((score(task, example, response), time.monotonic() - began))
            except RuntimeError as error:
                line.send(str(error))
    except InputError as error:
        line.send(str(error))
    except (EOFError, ConnectionError):
        pass


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
