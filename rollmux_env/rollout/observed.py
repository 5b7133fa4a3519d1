"""A rollout that runs elsewhere, as a rollout policy sees it: what the policy orders is noted, for others to carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel import rollout_records as records
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.timing.replica import ReplicaTiming


@dataclass
class Orders:
    """What a policy has ordered.

    Attributes:
        size: GPUs of each of new replicas that take the place of the old ones; None: no such.
        replica: {response: the replica that it goes to}, of those launched or moved. aborted: responses.
    """

    size: int | None
    replica: dict[int, int]
    aborted: list[int]


class ObservedFleet(Fleet):
    """A running rollout as `Fleet` has it, to launch, inspect, migrate and abort responses; it runs nothing itself.

    Args:
        rollout: tables as they were observed, of the replicas in use. gpus: of each of these. now_s: since the beginning.
        sizes: whether replicas may be replaced.

    Attributes:
        orders: since it was made.
    """

    def __init__(self, rollout: records.Rollout, gpus: int, now_s: float, sizes: bool) -> None:
        self._rollout = rollout
        self._sizes = sizes
        self.now_s = now_s
        self.migrations = 0
        self.moved_s = np.inf
        self.gpus = np.full(self.size, gpus)
        self.orders = Orders(None, {}, [])

    def sampled(self) -> Ints:
        """(R,) tokens so far."""
        return np.array(self._rollout.responses["sampled"])

    def add(self, replicas: Sequence[ReplicaTiming], gpus: int = 1, from_s: float | None = None) -> Ints:
        """Order replicas that take the place of all others; their numbers begin with 0.

        Raises:
            InputError: these engines have one size.
        """
        if not self._sizes:
            raise InputError("rollout policy: orders replicas of another size, and these engines have one")
        self.orders.size = gpus
        return np.arange(len(replicas))

    def launch(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Order new responses at replicas."""
        self.orders.replica |= dict(zip(responses.tolist(), replicas.tolist(), strict=True))

    def migrate(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Order that responses go on at other replicas."""
        self.launch(responses, replicas)

    def abort(self, responses: Ints) -> None:
        """Order that responses end."""
        self.orders.aborted += responses.tolist()

    def run(self, until_s: float = np.inf, responses: int | None = None, complete: int | None = None) -> None:
        """It runs elsewhere.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("this rollout runs elsewhere")
