"""Two GRPO jobs in plain torch, started by two commands, take turns on the nodes of a service without Ray, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rollmux_env.files import EXAMPLES
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, read_run
from tests.clients.test_two_trl_runs import COMMAND, ENVIRONMENT, serving

ITERATIONS = 20


@pytest.mark.long
def test_two_jobs_take_turns_and_learn(tmp_path: Path) -> None:
    with serving(tmp_path / "service") as (url, tokens):
        commands = []
        for name, token in zip(("first", "second"), tokens, strict=True):
            script = [sys.executable, str(EXAMPLES / "http_grpo.py"), "--out", str(tmp_path / name)]
            words = [*COMMAND, "exec", str(EXAMPLES / "http_grpo.yaml"), "--job", name, "--", *script]
            environment = ENVIRONMENT | {"ROLLMUX_URL": url, "ROLLMUX_TOKEN": token, "CUDA_VISIBLE_DEVICES": ""}
            commands.append(
                subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
        outputs = [command.communicate(timeout=600)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0]
    for output in outputs:
        rewards = [float(reward) for reward in re.findall(r"reward (\S+)", output)]
        assert len(rewards) == ITERATIONS and rewards[0] < 0.6 and rewards[-1] > 0.9
    assert audit(read_facts(tmp_path / "service" / JOURNAL)).problems == ()
    record = read_run(tmp_path / "service")
    for node in ("rollout-0", "training-0"):
        turns = sorted((part.start_s, part.end_s, part.job_id) for part in record.phases if node in part.nodes)
        assert all(before[1] <= after[0] for before, after in pairwise(turns))
        assert {job for _, _, job in turns} == {"first", "second"}
