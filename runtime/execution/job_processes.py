"""The processes that jobs start beside their own: they end with their job, also those that have left its session or its tree.

They are known by a mark in the environment that they were started with, or, where they were forked, by what they inherit: they
print to a log of the job's. Whoever reads a log is left alone.
"""

from __future__ import annotations

import os

from runtime.execution.own_ray import end_all, marked_processes

_MARK = "ROLLMUX_LOGS"  # in the environment: the folder of the job's logs, with a slash at its end
_GRACE_S = 2.0  # for those that end by themselves


def mark_process(logs: str) -> None:
    """Let what this process starts from now on be known as a job's.

    Args:
        logs: folder of the job's logs.
    """
    os.environ |= mark_of(logs)


def mark_of(logs: str) -> dict[str, str]:
    """What makes a process known as a job's, in its environment.

    Args:
        logs: folder of the job's logs.
    """
    return {_MARK: f"{logs}/"}


def end_job_processes(logs: str) -> None:
    """End what is left of a job on this machine; or of all jobs of a run, whose logs are below one folder."""
    end_all(lambda: marked_processes(f"{_MARK}={logs}/", logs, (os.O_WRONLY,)), _GRACE_S)
