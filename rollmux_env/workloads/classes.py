"""Classes of jobs: how much a job's class says about the length of its stay.

A class has a score, and so has each job: sqrt(explained) times the score of its class plus sqrt(1 - explained) times a standard
normal draw. The k-th shortest stay of the stream goes to the job with the k-th lowest score, so a stream with classes
has the same stays as one without. As stays are lognormal, classes then explain about that share of the variance of their logarithm.

Scores of classes lie on a circle: that of class k of K is sqrt(2) cos(2 pi (k + u) / K), with a draw u of the seed. From three
classes on their variance is 1. With turns, the angle grows from one job to the next by as many turns over the whole stream: classes
that were short become long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sqrt

import numpy as np
from scipy.special import ndtri

from rollmux_env.keys.job import Job
from rollmux_env.portable import uniform
from rollmux_env.workloads.draws import Array
from rollmux_env.workloads.options import WorkloadOptions


def by_class(options: WorkloadOptions, stays_h: Array) -> Array:
    """Return the same stays, in the order in which the jobs of a stream have them, shape (n,).

    Args:
        options: Options with the seed and the classes. Without classes the order is unchanged.
        stays_h: Stays that do not depend on classes, shape (n,).
    """
    if not options.classes:
        return stays_h
    n = len(stays_h)
    angles = (_classes(options, n) + uniform(options.seed, "class angle", 1)) / options.classes + options.turns * np.arange(n) / n
    of_class = sqrt(2) * np.array([cos(2 * pi * angle) for angle in angles.tolist()])
    own = ndtri(np.maximum(uniform(options.seed, "beside classes", n), 1e-12))
    scores = sqrt(options.explained) * of_class + sqrt(1 - options.explained) * own
    ordered = np.empty(n)
    ordered[np.argsort(scores, kind="stable")] = np.sort(stays_h)
    return ordered


def with_classes(jobs: Sequence[Job], options: WorkloadOptions) -> tuple[Job, ...]:
    """Return the jobs of a stream with their `class`, if the options have classes."""
    if not options.classes:
        return tuple(jobs)
    numbers = _classes(options, len(jobs)).tolist()
    return tuple(job.model_copy(update={"class_name": f"class-{k}"}) for job, k in zip(jobs, numbers, strict=True))


def _classes(options: WorkloadOptions, n: int) -> Array:
    """Draw the number of the class of each of n jobs."""
    return np.floor(options.classes * uniform(options.seed, "classes", n)).astype(np.int64)
