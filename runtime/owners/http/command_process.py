"""The process of a job with a command, and all processes that it starts.

They end with the command. A descendant that has left the command's session and carries no mark of the job is known because it was
seen while its parents lived.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, strftime
from typing import Any

from rollmux_processes import LeaseProcesses, processes, same_host

from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import CommandJob
from runtime.machine import Node, threads_of
from runtime.machines.job_processes import end_job_processes, mark_of
from runtime.output import open_log

LOOKS_S = 0.2
_FINDS_S = 5.0  # interval at which the descendants of a command are looked for
_ENDS_S = 10.0  # from SIGTERM to SIGKILL
_LOG = "command"
_ALLOWED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "TORCH_HOME"),
        *("CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_CACHE"),
    )
)
_ALLOWED_PREFIXES = ("LC_", "XDG_", "NCCL_", "GLOO_")


def why_not_started(error: OSError | ValueError) -> str:
    """Return why a command cannot be started, with the file or folder that is meant; a null byte in it is a ValueError."""
    if not isinstance(error, OSError) or not error.strerror:
        return one_line(str(error))
    return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)


class CommandProcess:
    """A job's command with its descendants. A command of a former coordinator is known by the mark of the job alone.

    Args:
        logs: Folder of the job's logs.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._child: subprocess.Popen[bytes] | None = None
        self._mine = LeaseProcesses()

    def start(self, spec: CommandJob, nodes: Sequence[Node], environment: Mapping[str, str]) -> None:
        """Start the command in a session of its own.

        Args:
            spec: The job.
            nodes: Nodes of the job, on this machine and others.
            environment: Variables beyond those that a command gets of the service's environment.

        Raises:
            OSError: If it cannot be started; its log says why.
            ValueError: If there is a null byte in it; likewise.
        """
        here = [node for node in nodes if not node.host or same_host(node.host, os.uname().nodename)]
        environment = allowed_environment(os.environ) | _variables(self._logs, here) | dict(environment)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        with open_log(self._logs, _LOG) as log:

            def say(words: str) -> None:
                log.write(f"{strftime('%Y-%m-%d %H:%M:%S')}  {words}\n".encode(errors="replace"))
                log.flush()

            say(f"starts on {' '.join(node.name for node in nodes)}")
            try:
                self._child = subprocess.Popen(
                    spec.command, cwd=spec.folder or None, env=environment, stdout=log, start_new_session=True, **streams
                )
            except (OSError, ValueError) as error:
                say(f"cannot be started: {why_not_started(error)}")
                raise
        cores = {core for node in here for core in node.cores}
        if cores and not any(node.gpus for node in here):
            os.sched_setaffinity(self._child.pid, cores)

    async def wait(self) -> int:
        """Wait until the command ends, and return its exit status, or minus the signal that has ended it."""
        child, found_s = self._child, 0.0
        assert child is not None
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if monotonic() - found_s > _FINDS_S:
                await asyncio.to_thread(self._find)
                found_s = monotonic()
            await asyncio.sleep(LOOKS_S)
        await asyncio.to_thread(self._find)  # its process id, which is that of its group, is reserved until its status is read
        return child.wait()

    async def end(self) -> list[int]:
        """End the command and all processes that it has started, and return the ids of those that cannot be ended."""
        child = self._child
        if child is not None and child.poll() is None:
            await asyncio.to_thread(self._find)
            _signal(child.pid, signal.SIGTERM)
            for _ in range(round(_ENDS_S / LOOKS_S)):
                if child.poll() is not None:
                    break
                await asyncio.sleep(LOOKS_S)
            _signal(child.pid, signal.SIGKILL)
        remaining = await asyncio.to_thread(self._end_rest)  # the command too: its end may take forever in a driver that hangs
        if child is not None:
            child.poll()
        return remaining

    def _end_rest(self) -> list[int]:
        table = processes()
        return end_job_processes(str(self._logs), [(pid, table[pid].started) for pid in self._mine.find(table)])

    def _find(self) -> None:
        """Look for descendants of the command, which has not been reaped yet."""
        assert self._child is not None
        self._mine.find(processes(), group=self._child.pid)


def allowed_environment(service: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a service's environment that a command gets: no tokens, and no settings of the service itself.

    Args:
        service: Environment of the service.
    """
    return {name: value for name, value in service.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)}


def _variables(logs: Path, here: Sequence[Node]) -> dict[str, str]:
    """Return the mark of a job, and the variables that restrict its command to its nodes on this machine."""
    own = mark_of(str(logs)) | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # in which NVML numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for node in here for gpu in node.gpus),
        "PYTHONUNBUFFERED": "1",
    }
    if not any(node.gpus for node in here):
        threads = str(threads_of(*(node.cores for node in here)))
        own |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    return own


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # sudo belongs to another user
        os.killpg(group, number)
