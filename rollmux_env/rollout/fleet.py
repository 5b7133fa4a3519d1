"""The replicas of a rollout and the responses on them, as a rollout policy sees and moves them.

Only the kernel knows how long a response is going to be. The public interface shows what has been sampled so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel import rollout_records as records
from rollmux_env.kernel import rollout_rounds as rounds
from rollmux_env.kernel import rollouts as kernel
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.replica import ReplicaTiming


def _column(table: str, name: str) -> Any:
    """A column of a table of the rollout."""
    return property(lambda fleet: getattr(fleet.tables, table)[name])


class Fleet:
    """A running rollout: launch, run, inspect, migrate, abort.

    Args:
        replicas: what each replica costs. most: sequences of a replica's batch.
        prompt_tokens: of each turn of a response, (R,) or of all.
        lengths: (R, T) tokens that it will have in each turn; kept from policies.
        away_s: seconds between the end of a turn and the next one's prompt.
        each: responses of each prompt, which follow one another. needed: finished responses that complete a prompt.
        gpus: of each replica.

    Attributes:
        now_s: seconds since the start. gpus: (K,) of each replica. busy_s: (K,) until when each had something to do.
        state: (R,) NEW, WAITING, RUNNING, FINISHED, ABORTED or AWAY, as in the kernel. replica: (R,) where each response is, or
            last was. end_s: (R,) when it finished or was aborted; infinite before.
        migrations: times that a response went to another replica. moved_s: when one first did, or infinite.

    Raises:
        InputError: a response that fits in no replica's cache, one without tokens, or no replicas.
    """

    now_s: float = 0.0
    migrations: int = 0
    moved_s: float = np.inf
    state: Ints = _column("responses", "state")
    replica: Ints = _column("responses", "replica")
    end_s: Floats = _column("responses", "end_s")
    busy_s: Floats = _column("replicas", "busy_s")

    def __init__(
        self,
        replicas: Sequence[ReplicaTiming],
        prompt_tokens: Ints | int,
        lengths: Ints,
        each: int,
        needed: int,
        most: int = 256,
        gpus: int = 1,
        away_s: float = 0.0,
    ) -> None:
        self._longest = int((prompt_tokens * len(lengths[0]) + lengths.sum(axis=1)).max())
        if lengths.min() < 1:
            raise InputError("rollout: a response must have at least one token in each turn")
        self._rollout = records.rollout_table(len(lengths), 0, len(lengths) // each, needed, len(lengths[0]))
        self._rollout.turns[:] = np.cumsum(lengths.astype(np.int64), axis=1)
        prompts = np.full(len(lengths), prompt_tokens, np.int64)
        rounds.begin_round(self._rollout, prompts, each, needed, float(away_s))
        self._most = most
        self.gpus = np.zeros(0, np.int64)
        self.add(replicas, gpus)

    @property
    def tables(self) -> records.Rollout:
        """The rollout as the kernel has it, lengths included: for compiled code that forecasts from what `sampled` brings up to
        date. Nothing that decides may read what is to come."""
        return self._rollout

    @property
    def size(self) -> int:
        """How many replicas there are, those without work included."""
        return int(self._rollout.replicas.size)

    @property
    def finished(self) -> Ints:
        """(n,) the responses that have finished, in that order."""
        return self._rollout.order[: self._rollout.order[-1]]

    @property
    def complete(self) -> int:
        """Prompts that are complete."""
        return int(self._rollout.counts[0])

    @property
    def preemptions(self) -> int:
        """Number of times a full cache returned a response to the queue."""
        return int(self._rollout.counts[1])

    @property
    def open(self) -> Ints:
        """(n,) the responses that wait or run, or are away between two turns."""
        return np.flatnonzero(np.isin(self._rollout.responses["state"], (records.RUNNING, records.WAITING, records.AWAY)))

    def sampled(self) -> Ints:
        """(R,) tokens so far."""
        kernel.observe(self._rollout, self.now_s)
        return np.array(self._rollout.responses["sampled"])

    def context(self) -> Ints:
        """(R,) tokens so far, the prompts' included."""
        prompt: Ints = self._rollout.responses["prompt"]
        return self.sampled() + prompt

    def add(self, replicas: Sequence[ReplicaTiming], gpus: int = 1, from_s: float | None = None) -> Ints:
        """More replicas, of `gpus` each, that begin to work at `from_s`, by default now.

        Returns:
            (n,) their numbers.

        Raises:
            InputError: none, or one whose cache is too small for the longest response.
        """
        if not replicas:
            raise InputError("rollout: there must be at least one replica")
        for replica in replicas:
            if replica.kv_tokens <= self._longest:
                need = f"a prompt and its response have {self._longest} tokens"
                raise InputError(f"rollout: the cache of a replica holds {replica.kv_tokens} tokens; {need}")
        n, first = len(replicas), self.size
        self.gpus = np.concatenate([self.gpus, np.full(n, gpus)])
        new, from_s = records.replica_table(n), self.now_s if from_s is None else from_s
        for k, replica in enumerate(replicas):
            rounds.write_replica(new, k, np.array(replica.costs, float), replica.kv_tokens, self._most, float(from_s))
        now = self._rollout
        self._rollout = now._replace(
            replicas=np.concatenate([now.replicas, new]),
            batch=np.concatenate([now.batch, np.zeros((n, now.responses.size), np.int64)]),
        )
        return np.arange(first, first + n)

    def launch(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Queue new responses at replicas, one replica per response; `refill_s` as in `migrate`."""
        self._check_there(responses, replicas)
        if (self._rollout.responses["state"][responses] != records.NEW).any() or np.unique(responses).size != responses.size:
            raise PlanError("R5: a response is launched once")
        if refill_s is not None:
            self._rollout.responses["refill_s"][responses] = refill_s
        kernel.launch(self._rollout, responses, replicas, self.now_s)

    def migrate(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Continue responses at other replicas from what they have sampled.

        Args:
            replicas: the new one of each.
            refill_s: (n,) seconds that bring its cache there; None: it is prefilled again, as prompt and sampled tokens.
        """
        self._check_there(responses, replicas)
        if not np.isin(responses, self.open).all() or np.unique(responses).size != responses.size:
            raise PlanError("R5: only a response that waits or runs can migrate")
        if refill_s is not None:
            self._rollout.responses["refill_s"][responses] = refill_s
        kernel.move(self._rollout, responses, replicas, self.now_s)
        self.migrations += responses.size
        if responses.size:
            self.moved_s = min(self.moved_s, self.now_s)

    def _check_there(self, responses: Ints, replicas: Ints) -> None:
        """R5: the kernel takes the numbers as they are."""
        for name, numbers, count in (("response", responses, self.state.size), ("replica", replicas, self._usable)):
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
                raise PlanError(f"R5: there is no {name} {numbers[(numbers < 0) | (numbers >= count)][0]}, only 0 to {count - 1}")
        if responses.shape != replicas.shape:
            raise PlanError(f"R5: {responses.size} responses are to go to {replicas.size} replicas, one each")

    @property
    def _usable(self) -> int:
        """Replicas that responses can go to."""
        return self.size

    def abort(self, responses: Ints) -> None:
        """End waiting or running responses."""
        kernel.take_off(self._rollout, responses, self.now_s, records.ABORTED)

    def run(self, until_s: float = np.inf, responses: int | None = None, complete: int | None = None) -> bool:
        """Run until a time, a total number of finished responses or complete prompts, or until nothing runs; what ends at the same
        instant has ended too. Whether the round is over: so many prompts are complete, or nothing is open."""
        every = self._rollout.responses.size + 1
        stops = every if responses is None else responses, every if complete is None else complete
        self.now_s, over = rounds.go_on(self._rollout, self.now_s, until_s, *stops)
        return over

    def end(self, wanted: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Abort what is open of a round that is over with so many prompts.

        Returns:
            (wanted,) the prompts that are complete, as they became so, and (R,) whether each response counts.
        """
        return rounds.end_round(self._rollout, wanted, self.now_s)


@dataclass
class Orders:
    """What a policy has ordered.

    Attributes:
        size: GPUs of each of new replicas that take the place of the old ones; None: no such.
        replica: {response: the replica that it goes to}, of those launched or moved.
        aborted: whether responses were to be dropped.
    """

    size: int | None
    replica: dict[int, int]
    aborted: bool = False


class ObservedFleet(Fleet):
    """A rollout that runs elsewhere: what a policy orders is noted, for others to carry out.

    Args:
        rollout: tables as they were observed, of the replicas in use. gpus: of each of these. now_s: since the beginning.
        sizes: whether replicas may be replaced.

    Attributes:
        orders: since it was made.
    """

    def __init__(self, rollout: records.Rollout, gpus: int, now_s: float, sizes: bool) -> None:
        self._rollout = rollout
        self._sizes = sizes
        self._live = self.size
        self.now_s = now_s
        self.gpus = np.full(self.size, gpus)
        self.orders = Orders(None, {})

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
        self._live = len(replicas)
        return np.arange(self._live)

    @property
    def _usable(self) -> int:
        return self._live

    def launch(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Order new responses at replicas."""
        self._check_there(responses, replicas)
        self.orders.replica |= dict(zip(responses.tolist(), replicas.tolist(), strict=True))

    def migrate(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Order that responses go on at other replicas."""
        self.launch(responses, replicas)

    def abort(self, responses: Ints) -> None:
        """Note that it was asked for: responses end where they run."""
        self.orders.aborted = self.orders.aborted or responses.size > 0

    def run(self, until_s: float = np.inf, responses: int | None = None, complete: int | None = None) -> bool:
        """It runs elsewhere.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("this rollout runs elsewhere")
