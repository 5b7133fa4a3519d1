"""Entries of the journal about the phases that a job has held nodes for."""

from __future__ import annotations

from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.jobside.messages import Report
from runtime.journal.facts import PhaseMeasures, PhaseSlice, Span
from runtime.machine import Pool


def sides_of(handle: JobHandle, phase: HoldName) -> tuple[Pool | None, ...]:
    """Return the sides of which the journal gets a slice when a phase is over: of an init both, unless they share nodes."""
    if phase == "init":
        return ("training",) if handle.place.pool_of("rollout") == "training" else ("rollout", "training")
    return () if phase == "sync" else (None,)


def slice_of(
    handle: JobHandle,
    report: Report,
    now_s: float,
    spans: tuple[Span, ...] = (),
    ok: bool = True,
    extra: bool = False,
    side: Pool | None = None,
) -> PhaseSlice:
    """Return the entry about a phase that is over.

    Args:
        handle: The job.
        report: The job's report of the phase.
        now_s: The time, in seconds of the run.
        spans: Times for which a rollout has held parts of its nodes.
        ok: Whether the job has ended the phase itself.
        extra: Whether the phase counts no iteration.
        side: Side of a phase that holds all nodes, or None of other phases.
    """
    hold = handle.permits.holds["init" if side else "training" if report.phase == "training" else "rollout"]
    pool: Pool = side or ("training" if hold.pool == "training" else "rollout")
    assert handle.place.group is not None
    return PhaseSlice(
        job_id=handle.id,
        phase=report.phase,  # type: ignore[arg-type]
        profile=handle.is_guest or handle.is_over,
        iteration=hold.iteration,
        group=handle.place.group,
        pool=handle.place.pool_of(pool),
        numbers=handle.place.numbers[pool],
        nodes=tuple(node.name for node in handle.place.nodes[pool]),
        asked_s=hold.asked_s,
        start_s=hold.start_s,
        end_s=now_s,
        permit_s=report.begun_s - hold.start_s,
        switched=hold.switched,
        ok=ok,
        run_s=report.run_s,
        done_s=report.done_s,
        **{name: getattr(report, name) for name in PhaseMeasures.__dataclass_fields__},
        spans=spans if report.phase == "rollout" else (),
        extra=extra,
    )
