"""What processes of a job print is in its folder, bounded, and read in order."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from runtime.output import follow_lines, lines, read_log, trim

PRINTS = """
import os, sys
from runtime.output import capture
capture(sys.argv[1], sys.argv[2])
print("by print")
print("an error", file=sys.stderr)
os.write(1, b"by the system\\n")
"""


def test_everything_that_a_process_prints_is_kept(tmp_path: Path) -> None:
    for name in ("controller", "rollout-0.Echo", "controller"):
        done = subprocess.run([sys.executable, "-c", PRINTS, str(tmp_path / "job"), name], capture_output=True, check=True)
        assert not done.stdout and not done.stderr
    said = ["by print", "an error", "by the system"]
    assert [*lines(tmp_path / "job")] == [f"controller | {line}" for line in 2 * said] + [
        f"rollout-0.Echo | {line}" for line in said
    ]


def test_files_stay_in_bounds_and_keep_what_came_last(tmp_path: Path) -> None:
    path = tmp_path / "job" / "controller.log"
    path.parent.mkdir()
    path.write_text("".join(f"line {k}\n" for k in range(1000)))
    trim([tmp_path / "job"], largest=10_000)
    assert len([*lines(path.parent)]) == 1000
    trim([tmp_path / "job"], largest=1000)
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 500
    with path.open("a") as file:
        file.write("more\n")
    assert [*lines(path.parent)][-2:] == ["controller | line 999", "controller | more"]


def test_following_goes_on_to_the_end_and_over_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("first\n")
    steps = iter(["second\nthi", "rd\n", None, "x\nlast"])

    def ended() -> bool:
        step = next(steps)
        if step is None:
            path.write_text("")  # as `trim` does
            return False
        with path.open("a") as file:
            file.write(step)
        return step.endswith("last")

    assert list(follow_lines(partial(read_log, tmp_path), ended)) == [
        f"a | {line}" for line in ("first", "second", "third", "x", "last")
    ]


def test_what_is_no_file_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    (tmp_path / "a.log").write_text("a line\n")
    assert [*lines(tmp_path)] == [*follow_lines(partial(read_log, tmp_path), lambda: True)] == ["a | a line"]


FULL = """
import os, resource, signal, sys
from runtime.output import capture
capture(sys.argv[1], "controller")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # the system refuses what is behind
for k in range(1000):
    print("a line that is longer", k)
    print("an error", file=sys.stderr, flush=True)
os._exit(7)
"""


def test_a_process_whose_output_finds_no_room_goes_on(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], check=False)
    assert done.returncode == 7
    assert (tmp_path / "controller.log").read_text() == "a line tha"


def test_a_file_that_goes_meanwhile_or_cannot_be_copied_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "gone.log").symlink_to(tmp_path / "nowhere")
    path = tmp_path / "job" / "long.log"
    path.write_text("x" * 2000)
    (tmp_path / "job" / "long.log.1").mkdir()  # in place of a disk without room
    trim([tmp_path / "job"], largest=1000)
    assert path.stat().st_size == 0
