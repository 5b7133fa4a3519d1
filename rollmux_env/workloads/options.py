"""Options of workloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.fields import AtLeastOne, Checked, NonNegative
from rollmux_env.keys.assumptions import Assumptions, assumed
from rollmux_env.suggestions import did_you_mean

MAX_JOBS = 1_000_000
# A virtual cluster may be called 103959.
_TEXTS = ("csv", "virtual_cluster", "profile", "trace", "phase_times", "drift", "assumptions")


@dataclass(frozen=True)
class WorkloadOptions(Checked):
    """Options of all workloads. A workload rejects options that it does not support.

    Attributes:
        seed: the same seed and options give the same scenario. Each purpose (types, stays, SLOs, ...) draws from a stream of
            its own, so changing one option does not reshuffle the rest.
        jobs: how many jobs; None is the workload's own number. Of a CSV file, the first so many.
        stays: `iterations`, each job does the iterations that its stay would hold alone (equal work under every policy), or
            `fixed`, each job leaves its stay after its admission (the paper's accounting).
        slo: SLOs are uniform between these two; None is the workload's own law, (1, 2) unless it says otherwise.
        max_group_size: most jobs in a co-execution group.
        switches: jobs carry the paper's warm and cold start seconds, which event replays add (`production`, `authors`, `micro-*`).
        shapes: jobs may run on half or twice their nodes too, by the rule of `rollmux_env.workloads.shapes` (`production`).
        asynchronous: share of the jobs that are asynchronous, by `rollmux_env.workloads.draws` (all but `micro-*`).
        third_pool: jobs may run on nodes of a third kind, by `rollmux_env.workloads.shapes` (`production`).
        assumptions: what nobody has published of the options above, and what phases really take: `ours`, those of the phase-time
            `model`, or a file, as `rollmux_env.keys.assumptions` says (all but `micro-*` and `authors`).
        semantics: `paper` is what the paper's reported production figures need: SLOs from U(1.1, 2) and half the training
            nodes for 32B jobs (`production`, `authors`).
        profile: whose phase times the jobs of a CSV file get: mixed, balanced, rollout-heavy or train-heavy (`philly`).
        csv: the trace (`philly`), with the columns that `rollmux_env.workloads.philly` names.
        window_start_h, window_h: only submissions from so many hours after the first one, and for so many (`philly`).
        virtual_cluster: only rows of this virtual cluster (`philly`).
        trace, phase_times, drift: files of RollMux's authors, as `rollmux_env.workloads.authors` says (`authors`).
        min_stay_h, max_stay_h: only rows whose duration lies in this range, hours (`philly`).
    """

    seed: Annotated[int, Field(ge=0, le=2**63)] = 0
    jobs: Annotated[int, Field(ge=1, le=MAX_JOBS)] | None = None
    stays: Literal["iterations", "fixed"] = "iterations"
    slo: tuple[AtLeastOne, AtLeastOne] | None = None
    max_group_size: Annotated[int, Field(ge=1, le=2**31)] = 5
    switches: bool = False
    shapes: bool = False
    asynchronous: Annotated[float, Field(ge=0, le=1)] = 0.0
    third_pool: bool = False
    assumptions: str | Path = "ours"
    semantics: Literal["default", "paper"] = "default"
    profile: str = "mixed"
    csv: str | Path | None = None
    trace: str | Path | None = None
    phase_times: str | Path | None = None
    drift: str | Path | None = None
    window_start_h: NonNegative = 0.0
    window_h: NonNegative | None = None
    virtual_cluster: str | None = None
    min_stay_h: NonNegative = 0.0
    max_stay_h: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slo is not None and self.slo[1] < self.slo[0]:
            raise InputError(f"slo: must be low and high, not {self.slo[0]:g} and {self.slo[1]:g}")

    @property
    def assumed(self) -> Assumptions:
        """What is assumed.

        Raises:
            InputError: no such name, or a file with another value than a key may have; one line.
        """
        return assumed(self.assumptions)

    def reject_unused(self, workload: str, used: frozenset[str]) -> None:
        """Reject options that would have no effect.

        Raises:
            InputError: an option outside `used` has another value than its default.
        """
        for option in fields(self):
            if option.name not in used and getattr(self, option.name) != option.default:
                has = ", ".join(sorted(used))
                raise InputError(f"{option.name}: the workload {workload} has no such option; it has {has}")


def parse_options(pairs: Iterable[str], seed: int) -> WorkloadOptions:
    """The options that pairs such as `stays=fixed` and `slo=[1.2,1.8]` set.

    Raises:
        InputError: a malformed pair, an unknown key or a value out of range; one line.
    """
    known = [option.name for option in fields(WorkloadOptions) if option.name != "seed"]
    values: dict[str, Any] = {}
    for key, text in parse_pairs("--set", pairs):
        if key not in known:
            raise InputError(f"--set {key}: workloads have no such option; they have {', '.join(known)}{did_you_mean(key, known)}")
        value = text if key in _TEXTS else parse_value(text)
        values[key] = tuple(value) if isinstance(value, list) else value
    return WorkloadOptions(seed=seed, **values)
