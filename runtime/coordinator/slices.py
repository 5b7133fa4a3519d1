"""Journal entries of the phases for which a job has held nodes."""

from __future__ import annotations

from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.jobside.messages import PhaseReport
from runtime.journal.facts import NodeShareSpan, PhaseMeasures, PhaseSlice
from runtime.machine import Pool


def sides_of(handle: JobHandle, phase: HoldName) -> tuple[Pool | None, ...]:
    """Return the sides that get an entry each when a phase is over: both for an init, unless they share nodes."""
    if phase == "init":
        return ("training",) if handle.place.pool_of("rollout") == "training" else ("rollout", "training")
    return () if phase == "sync" else (None,)


def slice_of(
    handle: JobHandle,
    report: PhaseReport,
    now_s: float,
    spans: tuple[NodeShareSpan, ...] = (),
    ok: bool = True,
    extra: bool = False,
    side: Pool | None = None,
) -> PhaseSlice:
    """Return the journal entry of a phase that is over.

    Args:
        handle: The job.
        report: Report of the job about the phase.
        now_s: Present time, in seconds of the run.
        spans: Spans in which a rollout has held parts of its nodes.
        ok: Whether the job completed the phase.
        extra: Whether the phase belongs to no iteration.
        side: Side of a phase that holds all nodes, or None for other phases.
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
