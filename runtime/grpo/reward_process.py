"""A separate process for a job's rewards. An engine or a reward worker starts it and runs none of the user's code itself.

The process is started as `python -m runtime.grpo.reward_process DESCRIPTOR PARENT`. It receives (task, seed, folder) and answers
True or a message about what is wrong. Then it receives requests. It answers `("score", example, response)` with (reward, seconds),
and `("prompts", count, position)` with the task's examples, or either of them with an error message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.jobs.making import make_task
from runtime.jobs.tasks import GrpoTask, TaskExample, reward_of, score

if TYPE_CHECKING:
    from runtime.jobs.spec import TaskJob


class RewardProcess:
    """A separate process that makes the job's task and computes its rewards. It starts at once, and again after a stop.

    It leads a process group, so that processes started by a test end with it. It ends itself when its parent has died.

    Args:
        spec: Specification of the job.
    """

    def __init__(self, spec: TaskJob) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._ready = False
        self._start()

    def score(self, example: TaskExample, response: str, limit_s: float | None) -> tuple[float, float] | None:
        """Compute the reward of a response.

        Args:
            example: Example of the prompt.
            response: Text of the response.
            limit_s: Time limit in seconds, None means no limit.

        Returns:
            Reward, and the time that it took in seconds. None means that the process was stopped at the limit, together with
            everything it had started.

        Raises:
            RuntimeError: As in `tasks.score`, or the process has died. The message is one line.
        """
        answer: tuple[float, float] | None = self._asked(("score", example, response), limit_s, reward_of(example, response))
        if answer is None:
            self.close()
        return answer

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return `count` examples of the task from `position` on. There is no time limit, as for all of a job's data.

        Raises:
            RuntimeError: The task fails, or the process has died. The message is one line.
        """
        examples: list[TaskExample] = self._asked(("prompts", count, position), None, f"prompts({count}, {position}) of the task")
        return examples

    def wait_until_ready(self) -> None:
        """Wait until the task is made.

        Raises:
            RuntimeError: The task cannot be made. The message is one line.
        """
        if self._line is None:
            self._start()
        if not self._ready:
            self._receive(None, "making the task")
            self._ready = True

    def close(self) -> None:
        """Kill the process and everything it has started."""
        if self._process is not None and self._line is not None:
            with contextlib.suppress(ProcessLookupError):  # the process has already ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._line.close()
        self._process = self._line = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
        path = os.pathsep.join(entry for entry in sys.path if entry)  # the process must find the same modules as this one
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), start_new_session=True, env=os.environ | {"PYTHONPATH": path}
        )
        theirs.close()
        self._line, self._ready = Connection(ours.detach()), False
        with contextlib.suppress(ConnectionError):  # the process has died, which the next `_receive` reports
            self._line.send((self._spec.task, self._spec.seed, self._spec.folder))

    def _asked(self, what: Any, limit_s: float | None, subject: str) -> Any:
        """Send a request and return the answer, or None if there was none within the limit."""
        self.wait_until_ready()
        assert self._line is not None
        with contextlib.suppress(ConnectionError):
            self._line.send(what)
        return self._receive(limit_s, subject)

    def _receive(self, limit_s: float | None, subject: str) -> Any:
        assert self._line is not None
        try:
            if not self._line.poll(limit_s):
                return None
            answer = self._line.recv()
        except (EOFError, ConnectionError):
            status = self._process.wait() if self._process else 0
            self.close()
            raise RuntimeError(f"{subject}: the process of the job's rewards ended with status {status}") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer


def serve(line: Connection) -> None:
    """Answer requests until the other end is closed."""
    try:
        spec, seed, folder = line.recv()
        task = make_task(spec, seed, folder, reads=False)
        line.send(True)
        while True:
            _answer(task, line)
    except InputError as error:
        line.send(str(error))
    except (EOFError, ConnectionError):
        pass


def _answer(task: GrpoTask, line: Connection) -> None:
    what, *arguments = line.recv()
    began = time.monotonic()
    try:
        if what == "score":
            line.send((score(task, *arguments), time.monotonic() - began))
        else:
            line.send(_prompts(task, *arguments))
    except RuntimeError as error:
        traceback.print_exc()  # into the job's log
        sys.stderr.flush()
        line.send(f"{error}; the job's log has more")


def _prompts(task: GrpoTask, count: int, position: int) -> list[TaskExample]:
    try:
        return list(task.prompts(count, position))
    except Exception as error:  # a user's class may raise anything
        problem = one_line(f"{type(error).__name__}: {error}")
        raise RuntimeError(f"prompts({count}, {position}) of the task fails: {problem}") from error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
