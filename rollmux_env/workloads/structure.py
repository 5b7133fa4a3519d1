"""Structure in the lengths of jobs: how much the traits of a job say about the length of its stay.

Traits are the job's class, its user, the seconds of its phases, which depend on the model and the cap of tokens, and the hour of
its arrival. A job's score is sqrt(explained / k) times the sum of the scores of the k traits that explain its length, plus
sqrt(1 - explained) times a standard normal draw. The k-th shortest stay of the stream goes to the job with the k-th lowest score,
so a stream with structure has the same stays as one without. As stays are lognormal, the traits then explain about that share of
the variance of their logarithm.

Scores of classes lie on a circle: that of class k of K is sqrt(2) cos(2 pi (k + u) / K), with a draw u of the seed. From three
classes on their variance is 1. With turns, the angle grows from one job to the next by as many turns over the whole stream: classes
that were short become long. Users and hours of the day have scores of this kind too, without turns. The score of the phases is the
normal quantile of their rank, scaled to a variance of 1: long phases, long stays. Jobs with the same phases have the same score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi, sqrt

import numpy as np
from scipy.special import ndtri

from rollmux_env.keys.job import Job
from rollmux_env.portable import dot, uniform
from rollmux_env.workloads.draws import Array
from rollmux_env.workloads.options import WorkloadOptions


def in_order_of_traits(options: WorkloadOptions, stays_h: Array, arrivals_s: Sequence[float], solo_s: Sequence[float]) -> Array:
    """Return the same stays, in the order in which the jobs of a stream have them, shape (n,).

    Args:
        options: Options with the seed and the traits. Without structure the order is unchanged.
        stays_h: Stays that do not depend on traits, shape (n,).
        arrivals_s: Arrival of each job, in seconds.
        solo_s: Seconds of both phases of each job.
    """
    if not options.has_structure:
        return stays_h
    n = len(stays_h)
    scores: dict[str, Callable[[], Array]] = {
        "class": lambda: _on_a_circle(_classes(options, n), options.classes, options, "class angle", options.turns),
        "user": lambda: _on_a_circle(_users(options, n), options.users, options, "user angle"),
        "phases": lambda: _by_rank(solo_s),
        "hour": lambda: _on_a_circle(np.asarray(arrivals_s) / 3600, 24, options, "hour angle"),
    }
    own = ndtri(np.maximum(uniform(options.seed, "beside classes", n), 1e-12))
    of_traits = sum((scores[trait]() for trait in options.explained_by), np.zeros(n))
    total = sqrt(options.explained / len(options.explained_by)) * of_traits + sqrt(1 - options.explained) * own
    ordered = np.empty(n)
    ordered[np.argsort(total, kind="stable")] = np.sort(stays_h)
    return ordered


def with_labels(jobs: Sequence[Job], options: WorkloadOptions) -> tuple[Job, ...]:
    """Return the jobs of a stream with their `class` and `user`, if the options have classes and users."""
    n = len(jobs)
    labels: list[dict[str, str]] = [{} for _ in jobs]
    if options.classes:
        labels = [{"class_name": f"class-{k}"} for k in _classes(options, n).tolist()]
    if options.users:
        labels = [{**label, "user": f"user-{k}"} for label, k in zip(labels, _users(options, n).tolist(), strict=True)]
    return tuple(job.model_copy(update=label) if label else job for job, label in zip(jobs, labels, strict=True))


def _on_a_circle(numbers: Array, count: int, options: WorkloadOptions, purpose: str, turns: float = 0.0) -> Array:
    """Return the score of each job from its place among `count` places on a circle, shape (n,)."""
    n = len(numbers)
    angles = (numbers + uniform(options.seed, purpose, 1)) / count + turns * np.arange(n) / n
    return sqrt(2) * np.array([cos(2 * pi * angle) for angle in angles.tolist()])


def _by_rank(solo_s: Sequence[float]) -> Array:
    """Return the score of each job from the rank of its phases, the mean one of jobs with the same phases, shape (n,)."""
    n = len(solo_s)
    _, numbers, counts = np.unique(solo_s, return_inverse=True, return_counts=True)
    scores = np.asarray(ndtri((np.cumsum(counts) - counts / 2) / n))[numbers]
    return scores / (sqrt(dot(scores, scores) / n) or 1.0)  # all phases may be the same


def _classes(options: WorkloadOptions, n: int) -> Array:
    """Draw the number of the class of each of n jobs."""
    return np.floor(options.classes * uniform(options.seed, "classes", n)).astype(np.int64)


def _users(options: WorkloadOptions, n: int) -> Array:
    """Draw the number of the user of each of n jobs."""
    return np.floor(options.users * uniform(options.seed, "users", n)).astype(np.int64)
