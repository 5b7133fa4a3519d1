"""The API is fuzzed from its own description: whatever comes, it answers as it says it does, and goes on."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.service.http.operations import OPERATIONS
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import JOB

pytestmark = pytest.mark.long
schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")

_EXAMPLES = 60  # of each operation


def hurry(case: Any) -> None:
    """Nobody waits for long."""
    for part in (case.query, case.body):
        if isinstance(part, dict) and isinstance(wait_s := part.get("wait_s"), int | float) and 0 <= wait_s <= 30:
            part["wait_s"] = 0.01


@pytest.mark.parametrize("operation", [f"{one.method} {one.path}" for one in OPERATIONS])
def test_it_answers_as_it_says(served: Served, operation: str) -> None:
    from hypothesis import HealthCheck, given, settings

    method, path = operation.split()
    bearer = {"Authorization": f"Bearer {served.token}"}
    schema = schemathesis.openapi.from_url(f"{served.server.url}/openapi.json", headers=bearer)
    checks = schemathesis.checks
    excluded = [checks.positive_data_acceptance] if hasattr(checks, "positive_data_acceptance") else []

    @given(case=schema[path][method].as_strategy())
    @settings(max_examples=_EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
    def check(case: Any) -> None:
        hurry(case)
        case.call_and_validate(headers=bearer, timeout=30, excluded_checks=excluded)

    check()
    assert served.ask("GET", "/healthz").status == 200
    served.ask("POST", "/v1/jobs", {"id": f"after-{method}-{len(path)}", **JOB})
    served.until(f"/v1/jobs/after-{method}-{len(path)}", lambda job: job["state"] == "done")
