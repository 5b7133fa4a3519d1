"""Two TRL runs of two users, started by two commands, take turns on the nodes of a service without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import rollmux_client

from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, read_run
from runtime.service.address import find

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(None in (find_spec("trl"), find_spec("peft")), reason="trl or peft is not installed"),  # found, not imported
    pytest.mark.filterwarnings("ignore"),  # of other people's packages about each other
]
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join((str(ROOT), str(Path(rollmux_client.__file__).parent), os.environ.get("PYTHONPATH", "")))
ENVIRONMENT = os.environ | {"PYTHONPATH": PATHS, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
COMMAND = (sys.executable, "-m", "rollmux")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A service without Ray; where it answers, and tokens of two users who may attach."""
    with subprocess.Popen(
        [*COMMAND, "serve", str(folder), "--no-ray"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None and "listening" in service.stdout.readline()
        address = find(folder)
        assert address is not None
        tokens = []
        for user in ("ann", "bob"):
            make = [*COMMAND, "token", "make", user, "--right", "attach", "--at", str(folder)]
            made = subprocess.run(make, env=ENVIRONMENT, capture_output=True, text=True, check=True)
            tokens.append(made.stdout.split()[0])
        try:
            yield address.url, tokens
        finally:
            service.terminate()
            service.communicate()


def test_two_runs_of_two_users_take_turns(tmp_path: Path) -> None:
    small = ["--iterations", "10", "--prompts", "2", "--tokens", "8"]
    runs = {"plain": ["--accumulate", "4", "--epochs", "2"], "lora": ["--lora", "--evaluate"]}
    with serving(tmp_path / "service") as (url, tokens):
        commands = []
        for (name, options), token in zip(runs.items(), tokens, strict=True):
            script = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "trl_job.py"), "--out", str(tmp_path / name)]
            words = [*COMMAND, "exec", str(ROOT / "examples" / "trl_job.yaml"), "--job", name, "--", *script, *small, *options]
            environment = ENVIRONMENT | {"ROLLMUX_URL": url, "ROLLMUX_TOKEN": token}
            commands.append(subprocess.Popen(words, env=environment, cwd=tmp_path, start_new_session=True))
        assert [command.wait(timeout=600) for command in commands] == [0, 0]
    assert audit(read_facts(tmp_path / "service" / JOURNAL)).problems == ()
    record = read_run(tmp_path / "service")
    for node in ("rollout-0", "training-0"):
        turns = sorted((part.start_s, part.end_s, part.job_id) for part in record.phases if node in part.nodes)
        assert all(before[1] <= after[0] for before, after in pairwise(turns))
        assert {job for _, _, job in turns} == {"plain", "lora"}
    assert {name: sum(done.job_id == name for done in record.iterations) for name in runs} == {"plain": 10, "lora": 10}
    assert [part.job_id for part in record.phases if part.extra] == ["lora", "lora"]  # its evaluations
