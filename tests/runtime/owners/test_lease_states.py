"""A lease is changed by its own methods, and by the facts that are written of it."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

from runtime.journal.leases import LeaseRecord
from runtime.owners.http.ledger import AttachedPlacement, Lease
from tests.runtime.coordinator.test_job_state import written

RUNTIME = Path(__file__).parents[3] / "runtime"
OWN = {RUNTIME / "owners/http/ledger.py", RUNTIME / "journal/leases.py"}
FIELDS = {field.name for cls in (AttachedPlacement, Lease, LeaseRecord) for field in fields(cls)} - {"over", "free"}
NAMES = {"lease", "taken", "recalled", "waiting", "last", "known", "record", "placement"}
MUTATED_BY_REQUESTS = {("record", "metrics")}  # of an iteration that is not over


def changed(text: str) -> set[tuple[str, str]]:
    """Fields of leases that a module writes, each with the name before it."""
    pairs = ((names[-2], names[-1]) for names in written(ast.parse(text)) if len(names) > 1)
    return {(before, field) for before, field in pairs if before in NAMES and field in FIELDS}


def test_no_other_file_changes_a_lease() -> None:
    found = {path: changed(path.read_text()) - MUTATED_BY_REQUESTS for path in {*RUNTIME.rglob("owners/http/*.py")} - OWN}
    assert len(found) > 5 and {path: names for path, names in found.items() if names} == {}


def test_a_change_would_be_noticed() -> None:
    text = "lease.state = 1\nlease.placement.unclaimed_since_s += 1\nlease.record.suspects.add(2)\nplacement.lease, x = lease, 3"
    assert changed(text) == {("lease", "state"), ("placement", "unclaimed_since_s"), ("record", "suspects"), ("placement", "lease")}
