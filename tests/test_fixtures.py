"""What an earlier version wrote is read as it was then: journals, run folders, a policy file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policies.placement.learned import Learned
from rollmux_env.cluster.events import Admitted, Moved
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import load_scenario
from runtime.compare import compare
from runtime.journal.audit import audit
from runtime.journal.kinds import kind_of
from runtime.journal.write import JOURNAL, read_facts, record_of, state_of
from runtime.report.figures import figures
from tests.benchmarks import load_benchmark
from tests.fixtures import FIXTURES, ROOT, copied

EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


def of_folder(name: str, folder: Path) -> dict[str, Any]:
    facts = read_facts(copied(name, folder) / JOURNAL)
    record = record_of(facts)
    state = state_of(record)
    expected = EXPECTED[name]["compared"]
    compared = known(compare(record), expected) if expected else None
    found = {
        "facts": dict(sorted(Counter(map(kind_of, facts)).items())),
        "audit": list(audit(facts).problems),
        "waiting": list(state.waiting),
        "groups": [[group.id, list(group.jobs), list(group.rollout_nodes), group.period_s] for group in state.group_list()],
        "done": {job_id: float(state.tables.jobs.done[state.row(job_id)]) for job_id in sorted(record.jobs)},
        "figures": known(figures(record), EXPECTED[name]["figures"]),
        "compared": compared,
    }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def known(found: Any, expected: Any) -> Any:
    """What was found, without keys that there were none of at the time."""
    if not isinstance(found, dict) or not isinstance(expected, dict):
        return found
    return {key: known(value, expected[key]) for key, value in found.items() if key in expected}


def of_policy() -> dict[str, Any]:
    scenario = load_scenario(ROOT / "benchmarks/scenarios/mixed-fixed-seed0.json")
    run = replay(scenario.model_copy(update={"jobs": scenario.jobs[:20]}), Learned(str(FIXTURES / "policy.safetensors")))
    frozen = load_benchmark("freeze_results")
    decisions = (frozen.known((event.job_id, event.placement)) for event in run.log if isinstance(event, Admitted | Moved))
    return {"cost_usd": metrics(run).cost_usd, "decisions": frozen.digest(decisions)}


@pytest.mark.parametrize("name", ["finished-run", "interrupted-run", "service", "attached-service"])
def test_a_folder_of_an_earlier_version_says_the_same(name: str, tmp_path: Path) -> None:
    assert of_folder(name, tmp_path) == EXPECTED[name]


def test_a_policy_file_of_an_earlier_version_decides_the_same() -> None:
    assert of_policy() == EXPECTED["policy"]
