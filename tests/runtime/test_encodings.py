"""The runtime's readers use the same door as all others: a file that is not UTF-8 is named as what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.jobs.file import load_cluster, load_jobs
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.jsonl import read_examples
from runtime.machines.hosts import load_hosts
from runtime.service.address import SERVICE, find
from runtime.service.tokens import TOKENS, Tokens
from tests.rollmux_env.test_encodings import OTHERS

DOORS: dict[str, Callable[[Path], object]] = {
    "jobs.yaml": load_jobs,
    "cluster.yaml": load_cluster,
    "hosts.yaml": load_hosts,
    "prompts.jsonl": lambda path: read_examples(TaskSpec(name="jsonl", file=path.name), str(path.parent)),
    SERVICE: lambda path: find(path.parent),
    TOKENS: lambda path: Tokens(path.parent).list(),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_names_what_is_no_utf_8(tmp_path: Path, name: str) -> None:
    for said, data in OTHERS.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=f"{name}: {said}"):
            DOORS[name](tmp_path / name)
