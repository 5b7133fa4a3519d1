"""A folder has one writer: a lock of the operating system, which ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.locks import only_writer
from tests.conftest import Command

HOLDER = (
    "import sys, time; from pathlib import Path; from rollmux_env.locks import only_writer\n"
    "with only_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
)


def test_the_second_writer_is_told_of_the_first(tmp_path: Path) -> None:
    refused = rf"a run is under way in this folder \(process {os.getpid()}\)$"
    with only_writer(tmp_path), pytest.raises(InputError, match=refused), only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "nothing is left"
    with only_writer(tmp_path):
        pass


def test_the_lock_of_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"process {holder.pid}"), only_writer(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [("quickstart",), ("quickstart", "--sweep", "slo=1"), ("--suite", "temporal", "--quick"), ("--suite", "leaderboard")],
)
def test_results_have_one_writer_a_folder(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    with only_writer(tmp_path):
        status, out, err = command("bench", *words, "--out", str(tmp_path), "--overwrite")
    assert (status, out, err.count("\n")) == (2, "", 1) and "under way in this folder" in err


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory"), only_writer(tmp_path / "none"):
        pass
