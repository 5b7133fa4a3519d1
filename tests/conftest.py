"""What tests of several packages need: the command, run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import rollmux
from tests import skips
from tests.chromium import Browser, browsing

Command = Callable[..., tuple[int, str, str]]

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is there: tests run side by side, and its threads would fight for cores
HERE = Path(__file__).parent
LONGEST = (  # files that take longest begin first, so that no process waits at the end; what one of them compiles others find
    "simulation/test_simulation.py",
    "runtime/grpo/test_job.py",
    "runtime/coordinator/test_interrupts.py",
    "test_extras.py",
    "policies/test_regroup.py",
    "runtime/coordinator/test_runs.py",
    "trainers/test_train.py",
    "trainers/recipes/test_imitation.py",
    "runtime/residency/test_offload.py",
    "test_cli.py",
    "rollmux_env/bench/test_bench.py",
    "runtime/engines/test_engines.py",
    "runtime/test_compare.py",
    "policies/test_optimal.py",
    "rollmux_env/envs/test_placement.py",
    "runtime/grpo/test_control.py",
    "runtime/training/test_ranks.py",
    "rollmux_env/cluster/test_state.py",
    "runtime/service/test_service.py",
    "runtime/service/test_user_code.py",
    "runtime/commands/test_exec.py",
    "runtime/commands/test_run.py",
    "runtime/coordinator/test_recovery.py",
    "runtime/grpo/test_asynchronous.py",
    "runtime/training/test_learning.py",
)

for _profile, _examples in (("rollmux", 30), ("thorough", 100)):  # no test depends on how busy the machine is
    settings.register_profile(_profile, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rollmux")  # `make test-long` takes the other one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(HERE).as_posix(), len(order)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if reports:
        terminalreporter.section(f"{len(reports)} skipped")
        for line in skips.told((report.nodeid.split("::")[0], report.longrepr[2]) for report in reports):
            terminalreporter.write_line(line)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `rollmux ARGUMENTS` here: (status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rollmux", *arguments])
        with pytest.raises(SystemExit) as left:
            rollmux.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of pages; they are marked `needs_chromium`."""
    with browsing(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, whose tabs are closed after the test."""
    yield chromium
    chromium.close_tabs()
