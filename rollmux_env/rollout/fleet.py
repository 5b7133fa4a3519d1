"""The replicas of a rollout and the responses on them, as a rollout policy sees and moves them.

Only the kernel knows the final lengths of responses. The public interface shows the tokens that have been sampled so far.
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
from rollmux_env.user_code import read_only


def _column(table: str, name: str) -> Any:
    """Return a property that shows a column of a table of the rollout, read-only."""
    return property(lambda fleet: read_only(getattr(fleet.tables, table)[name]))


class Fleet:
    """A running rollout with methods to launch, run, inspect, migrate and abort responses.

    In shapes, R is the number of responses, T of turns, and K of replicas. Arrays are read-only, except for those of `tables`.

    Args:
        replicas: Timing of each replica.
        prompt_tokens: Length of the prompt of each turn in tokens, shape (R,), or one number for all responses.
        lengths: Final number of sampled tokens of each turn, shape (R, T); hidden from policies.
        each: Number of responses to each prompt, which are consecutive.
        needed: Number of finished responses that complete a prompt.
        most: Largest number of sequences in a replica's batch.
        gpus: Number of GPUs of each replica.
        away_s: Seconds between the end of a turn and the next turn's prompt.

    Attributes:
        now_s: Seconds since the start.
        gpus: Number of GPUs of each replica, shape (K,).
        busy_s: Time until which each replica had work, in seconds since the start, shape (K,).
        state: State of each response, shape (R,): 0 NEW, 1 WAITING, 2 RUNNING, 3 FINISHED, 4 ABORTED or 5 AWAY (between two turns),
            constants of `rollmux_env.kernel.rollout_records`.
        replica: Current or last replica of each response, shape (R,).
        end_s: Time at which each response finished or was aborted, in seconds since the start, shape (R,); infinite before.
        migrations: Number of migrations of responses.
        moved_s: Time of the first migration in seconds since the start, or infinity.

    Raises:
        InputError: If a response fits in no replica's cache or has no tokens, or there is no replica.
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
        """The kernel's tables of the rollout, for compiled code that forecasts.

        They include the final lengths, which no policy may use in a decision. `sampled` updates the tables to the present.
        """
        return self._rollout

    @property
    def size(self) -> int:
        """Number of replicas, including idle ones."""
        return int(self._rollout.replicas.size)

    @property
    def finished(self) -> Ints:
        """Finished responses in the order in which they finished, shape (n,)."""
        return read_only(self._rollout.order[: self._rollout.order[-1]])

    @property
    def complete(self) -> int:
        """Number of complete prompts."""
        return int(self._rollout.counts[0])

    @property
    def preemptions(self) -> int:
        """Number of times a full cache returned a response to the queue."""
        return int(self._rollout.counts[1])

    @property
    def open(self) -> Ints:
        """Responses that wait, run, or are away between two turns, shape (n,)."""
        return np.flatnonzero(np.isin(self._rollout.responses["state"], (records.RUNNING, records.WAITING, records.AWAY)))

    def sampled(self) -> Ints:
        """Return the number of tokens that each response has sampled so far, shape (R,)."""
        kernel.observe(self._rollout, self.now_s)
        return np.array(self._rollout.responses["sampled"])

    def context(self) -> Ints:
        """Return the length of each response's context so far, including prompts, in tokens, shape (R,)."""
        prompt: Ints = self._rollout.responses["prompt"]
        return self.sampled() + prompt

    def add(self, replicas: Sequence[ReplicaTiming], gpus: int = 1, from_s: float | None = None) -> Ints:
        """Add replicas.

        Args:
            replicas: Timing of each new replica.
            gpus: Number of GPUs of each new replica.
            from_s: Time at which they begin to work, in seconds since the start, or None for now.

        Returns:
            Numbers of the new replicas, shape (n,).

        Raises:
            InputError: If there is no new replica, or a cache is too small for the longest response.
        """
        if not replicas:
            raise InputError("rollout: there must be at least one replica")
        for replica in replicas:
            if replica.kv_tokens <= self._longest:
                need = f"a prompt and its response have {self._longest} tokens"
                raise InputError(f"rollout: the cache of a replica holds {replica.kv_tokens} tokens; {need}")
        n, first = len(replicas), self.size
        self.gpus = read_only(np.concatenate([self.gpus, np.full(n, gpus)]))
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
        """Queue new responses at replicas.

        Args:
            responses: Responses to launch, shape (n,).
            replicas: Replica of each response, shape (n,).
            refill_s: Seconds to restore the cache of each response, as in `migrate`, shape (n,).
        """
        self._check_there(responses, replicas)
        if (self._rollout.responses["state"][responses] != records.NEW).any() or np.unique(responses).size != responses.size:
            raise PlanError("R5: a response is launched once")
        if refill_s is not None:
            self._rollout.responses["refill_s"][responses] = refill_s
        kernel.launch(self._rollout, responses, replicas, self.now_s)

    def migrate(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Continue responses on other replicas from the tokens that they have sampled.

        Args:
            responses: Responses to migrate, shape (n,).
            replicas: New replica of each response, shape (n,).
            refill_s: Seconds to transfer the cache of each response, shape (n,), or None to prefill prompt and sampled tokens
                again.
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
        """Check R5, because the kernel does not check indices."""
        for name, numbers, count in (("response", responses, self.state.size), ("replica", replicas, self._usable)):
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
                raise PlanError(f"R5: there is no {name} {numbers[(numbers < 0) | (numbers >= count)][0]}, only 0 to {count - 1}")
        if responses.shape != replicas.shape:
            raise PlanError(f"R5: there are {responses.size} responses and {replicas.size} replicas; each response needs one")

    @property
    def _usable(self) -> int:
        """Number of replicas that can receive responses."""
        return self.size

    def abort(self, responses: Ints) -> None:
        """Abort responses that wait or run."""
        kernel.stop_responses(self._rollout, responses, self.now_s, records.ABORTED)

    def run(self, until_s: float = np.inf, responses: int | None = None, complete: int | None = None) -> bool:
        """Run until the first of the given limits, or until nothing runs.

        Events at the instant of the limit are included.

        Args:
            until_s: Time limit, in seconds since the start.
            responses: Total number of finished responses, or None for no limit.
            complete: Total number of complete prompts, or None for no limit.

        Returns:
            Whether the round is over: `complete` prompts are complete, or no response is open.
        """
        every = self._rollout.responses.size + 1
        stops = every if responses is None else responses, every if complete is None else complete
        self.now_s, over = rounds.run_through_instant(self._rollout, self.now_s, until_s, *stops)
        return over

    def end(self, wanted: int) -> tuple[Ints, NDArray[np.bool_]]:
        """End a round that is over, and abort its open responses.

        Args:
            wanted: Number of prompts that the round needs.

        Returns:
            The first `wanted` complete prompts in the order in which they became complete, shape (wanted,) or shorter if fewer are
            complete, and whether each response is a finished one of these prompts, shape (R,).
        """
        return rounds.end_round(self._rollout, wanted, self.now_s)


@dataclass
class Orders:
    """The orders of a policy for a rollout that runs elsewhere.

    Attributes:
        size: Number of GPUs of each of the new replicas that replace the old ones, or None to keep the old ones.
        replica: New replica by response, for responses that are launched or migrated.
        aborted: Whether the policy asked to abort responses.
    """

    size: int | None
    replica: dict[int, int]
    aborted: bool = False


class ObservedFleet(Fleet):
    """A rollout that runs elsewhere. A policy's orders are recorded for others to carry out.

    Args:
        rollout: Observed tables of the replicas in use.
        gpus: Number of GPUs of each replica.
        now_s: Seconds since the start of the rollout.
        sizes: Whether replicas may be replaced by replicas of another size.

    Attributes:
        orders: Orders of the policy so far.
    """

    def __init__(self, rollout: records.Rollout, gpus: int, now_s: float, sizes: bool) -> None:
        self._rollout = rollout
        self._sizes = sizes
        self._live = self.size
        self.now_s = now_s
        self.gpus = read_only(np.full(self.size, gpus))
        self.orders = Orders(None, {})

    def sampled(self) -> Ints:
        """Return the number of tokens that each response has sampled so far, shape (R,)."""
        return np.array(self._rollout.responses["sampled"])

    def add(self, replicas: Sequence[ReplicaTiming], gpus: int = 1, from_s: float | None = None) -> Ints:
        """Order replicas that replace all others. Their numbers begin with 0.

        Args:
            replicas: Timing of each new replica.
            gpus: Number of GPUs of each new replica.
            from_s: Ignored; the replicas are built as soon as possible.

        Returns:
            Numbers of the new replicas, shape (n,).

        Raises:
            InputError: If the engines support only one size.
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
        """Order new responses at replicas. `refill_s` is ignored."""
        self._check_there(responses, replicas)
        self.orders.replica |= dict(zip(responses.tolist(), replicas.tolist(), strict=True))

    def migrate(self, responses: Ints, replicas: Ints, refill_s: Floats | None = None) -> None:
        """Order that responses continue on other replicas. `refill_s` is ignored."""
        self.launch(responses, replicas)

    def abort(self, responses: Ints) -> None:
        """Record that the policy asked to abort responses; they continue where they run."""
        self.orders.aborted = self.orders.aborted or responses.size > 0

    def run(self, until_s: float = np.inf, responses: int | None = None, complete: int | None = None) -> bool:
        """Raise an error, because the rollout runs elsewhere.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("this rollout runs elsewhere")
