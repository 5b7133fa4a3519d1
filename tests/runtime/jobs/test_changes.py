"""Entries of the same job that are compared."""

from __future__ import annotations

from typing import Any

from runtime.jobs.changes import changes, entry_of
from tests.runtime.pretend import job, specs_of


def entry(**more: Any) -> dict[str, Any]:
    return entry_of(specs_of(job("a", **more))[0])


def test_keys_whose_values_differ_are_named_with_both() -> None:
    other = entry(iterations=200, slo=3.5, rollout={"worst_case_s": 20.0, "host_memory_gb": 1.0})
    expected = {"iterations (3, now 200)", "slo (1000, now 3.5)", "rollout.worst_case_s (10, now 20)"}
    assert {*changes(entry(), other)} == expected


def test_a_key_that_is_left_out_has_its_default() -> None:
    assert changes(entry(), entry(movable=False, priority=0, user="ann", arrival_s=5.0)) == ()
    assert changes(entry(), entry(sync_s=2.0)) == ("sync_s (none, now 2)",)


def test_entries_of_another_version_are_compared_as_they_are() -> None:
    assert changes(entry() | {"of_tomorrow": 1}, entry()) == ("of_tomorrow (1, now none)",)
