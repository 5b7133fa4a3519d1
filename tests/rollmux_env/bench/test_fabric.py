"""The suite `fabric`: what its table must hold."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from policies.makers import makers
from rollmux_env.bench.suite import SuiteRow
from rollmux_env.bench.suites import SUITES, fabric
from rollmux_env.bench.suites.fabric import COLUMNS, LATE, PER_CLUSTER, PER_FABRIC, SECONDS, SWITCHES, fabric_rows
from tests.conftest import Command


@pytest.fixture(scope="module")
def rows() -> dict[str, SuiteRow]:
    """The largest mixture of experts."""
    return {row.policy: row for row in fabric_rows(fabric.CASES[-1:], [0], True, makers())}


def figure(row: SuiteRow, heading: str) -> float:
    mean = row.figures[heading]
    assert mean is not None
    return mean.mean


def test_every_arm_has_every_figure(rows: dict[str, SuiteRow]) -> None:
    assert len(rows) == len(fabric.CASES[-1].arms)
    assert all(set(row.figures) == {column.heading for column in COLUMNS} for row in rows.values())
    assert figure(rows["fat tree 1:1"], PER_FABRIC) == figure(rows["fat tree 1:1"], PER_CLUSTER) == 1.0


def test_policies_are_in_order(rows: dict[str, SuiteRow]) -> None:
    """At every reconfiguration time: the oracle, then `rfabric`, then `static`; and longer is no better."""
    last_s = 0.0
    for ms in fabric.RECONFIGURE_MS:
        oracle, rfabric = (figure(rows[f"{name} {fabric.WIDE}, {ms:g} ms"], SECONDS) for name in ("oracle", "rfabric"))
        assert oracle <= rfabric + 1e-9 and rfabric <= figure(rows[f"static {fabric.WIDE}"], SECONDS) + 1e-3 and oracle >= last_s
        last_s = oracle
    assert figure(rows[f"static {fabric.WIDE}"], SWITCHES) == figure(rows[f"static {fabric.WIDE}"], LATE) == 0


def test_fewer_uplinks_are_never_faster(rows: dict[str, SuiteRow]) -> None:
    seconds = [figure(rows[f"fat tree {32 // up}:1"], SECONDS) for up in fabric.TREES]
    assert seconds == sorted(seconds)


def test_the_command_prints_it_and_takes_network_policies(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "fabric", replace(fabric.SUITE, measure=partial(fabric_rows, fabric.CASES[:1])))
    status, printed, _ = command("bench", "--suite", "fabric", "--quick", "--format", "json")
    assert status == 0 and [row["policy"] for row in json.loads(printed)["rows"]] == [arm.name for arm in fabric.CASES[0].arms]
    status, _, said = command("bench", "--suite", "fabric", "-p", "solo")
    assert status == 2 and "network policy: must be one of static, rfabric, oracle" in said and said.count("\n") == 1
