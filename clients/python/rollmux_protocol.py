"""The protocol between the owner of a job and RollMux: states, messages, and the state that follows each message.

`ITERATION` and `ATTACHMENT` are tables: for each state, the allowed messages and the state that follows. Nothing else says what is
allowed in an iteration. `IterationStates` follows the iterations of an owner through the first table, and `Turns` adds the order of
several iterations. RollMux holds owners on Ray and owners over HTTP to `Turns`; a client checks its own calls with
`IterationStates`. This module has no clock, no input and no output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

States = Mapping[str, Mapping[str, str]]
PhaseName = Literal["init", "rollout", "training", "sync"]

ITERATION: dict[str, dict[str, str]] = {
    "due": {"ask rollout": "rollout asked"},
    "rollout asked": {"grant rollout": "rollout", "drop": "due"},
    "rollout": {"release rollout": "sampled", "drop": "due"},
    "sampled": {"ask training": "training asked"},
    "training asked": {"grant training": "training", "drop": "sampled"},
    "training": {"release training": "trained", "drop": "sampled"},
    "trained": {"ask sync": "sync asked", "synced": "synced", "next": "over"},
    "sync asked": {"grant sync": "sync", "drop": "trained"},
    "sync": {"release sync": "synced", "synced": "synced", "drop": "trained"},
    "synced": {"synced": "synced", "next": "over"},
    "over": {},
    "new": {"ask init": "init asked", "ask sync": "first sync asked", "begin": "begun"},
    "init asked": {"grant init": "init", "drop": "new"},
    "init": {"release init": "made", "drop": "new"},
    "made": {"ask sync": "first sync asked", "begin": "begun"},
    "first sync asked": {"grant sync": "first sync", "drop": "made"},
    "first sync": {"release sync": "seeded", "drop": "made"},
    "seeded": {"begin": "begun"},
    "begun": {},
    "no evaluation": {"ask extra": "evaluation asked"},
    "evaluation asked": {"grant extra": "evaluation", "drop": "no evaluation"},
    "evaluation": {"release extra": "no evaluation", "drop": "no evaluation"},
}
"""State machine of one iteration.

An iteration goes from "due" to "over". "sampled" means that its rollout is over, "trained" that its training is over, and "synced"
that its sync is over. The states from "new" to "begun" belong to what comes before an owner's first iteration: "made" means that
the `init` is over, and "seeded" that the first weights have been sent. The last three belong to evaluations (extra rollouts), which
count as no iteration. `next` says that a later iteration has been trained, `begin` that an iteration or an evaluation has begun,
and `drop` that a phase that was asked for or granted counts for nothing.
"""
ATTACHMENT: dict[str, dict[str, str]] = {
    "away": {"attach": "attached"},
    "attached": {"move": "to move", "stay": "attached", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "to move": {"move": "to move", "stay": "attached", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "to stop": {"move": "to stop", "stay": "to stop", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "lost": {"free": "away"},
    "done": {},
}
"""State machine of an owner (the process that runs a job's phases), as the service and the client see it.

`stay` withdraws a request to move. `lose` says that the lease expired; the nodes of a lost owner stay reserved until `free`.
"""

ALL_NODES = ("init", "sync")
"""Phases on all nodes of the job."""
_HOLDS = {"init": "init", "rollout": "rollout", "training": "training", "sync": "sync", "extra": "evaluation"}
_OPEN = {  # states in which a phase is asked for or held, and whether it is held
    state: message.startswith("release ")
    for state, messages in ITERATION.items()
    for message in messages
    if message.startswith(("grant ", "release "))
}
_BEFORE_SAMPLED = frozenset({"due", "rollout asked", "rollout"})  # states of an iteration before the end of its rollout
_BEFORE_TRAINED = _BEFORE_SAMPLED | {"sampled", "training asked", "training"}  # and before the end of its training


class OutOfOrder(Exception):
    """A message is not allowed in the present state."""


def following(table: States, state: str, message: str) -> str:
    """Return the state that follows a message.

    Args:
        table: `ITERATION` or `ATTACHMENT`.
        state: Present state.
        message: The message.

    Raises:
        OutOfOrder: The table does not allow the message in this state.
    """
    after = table.get(state, {}).get(message)
    if after is None:
        raise OutOfOrder(f"'{message}' is not possible in the state '{state}'")
    return after


class Turn(NamedTuple):
    """A phase of an iteration, as an owner asks for it.

    Attributes:
        phase: Name of the phase.
        iteration: Number of the iteration. For `init` it is the owner's first iteration. For a sync before that, it is one less,
            and -1 for a new job.
        extra: Whether it is a rollout that counts as no iteration, such as an evaluation.
    """

    phase: PhaseName
    iteration: int
    extra: bool = False

    @property
    def name(self) -> str:
        """Name of the phase in the messages of `ITERATION`."""
        return "extra" if self.extra else self.phase


class IterationStates:
    """The state of each iteration of an owner, of what comes before the first one, and of its evaluations.

    Args:
        begins: Number of the owner's first iteration.

    Attributes:
        begins: Number of the owner's first iteration.
        syncs: Number of the last iteration whose sync is over, plus 1. The states do not say it, because an iteration may also be
            over without a sync.
        last: Last released phase of each name, so that a repeated release of it is recognised.
        open: Phases that the owner has asked for and not released, by name, derived from the states.
        granted: Names of the open phases that have been granted, derived from the states.
        rollouts: Number of rollouts that are over, derived from the states.
        trainings: Number of trainings that are over, derived from the states.
    """

    def __init__(self, begins: int = 0) -> None:
        self.begins = self.syncs = self.rollouts = self.trainings = begins
        self.last: dict[PhaseName, Turn] = {}
        self._states: dict[int, str] = {}  # iterations after the first one that is not over, as far as they are not due
        self._first = begins  # all iterations before it are over
        self._start = "new"
        self._evaluation = "no evaluation"
        self.open: dict[PhaseName, Turn] = {}
        self.granted: set[PhaseName] = set()

    def go_back(self, iteration: int) -> None:
        """Continue with an earlier iteration. Init and first sync are not repeated.

        Args:
            iteration: Number of the iteration to continue with.
        """
        if "sync" in self.last:
            self.last["sync"] = Turn("sync", iteration - 1)
        self.begins = self.syncs = self.rollouts = self.trainings = self._first = iteration
        self._states.clear()

    def state(self, turn: Turn) -> str:
        """Return the state in `ITERATION` of a phase's iteration, or of what comes before all iterations, or of evaluations."""
        if turn.extra:
            return self._evaluation
        if self._is_before(turn):
            return self._start
        return self._states.get(turn.iteration, "over" if turn.iteration < self._first else "due")

    def follow(self, turn: Turn, message: str) -> None:
        """Follow a message about a phase. Raises `OutOfOrder` if `ITERATION` does not allow it."""
        self._set(turn, following(ITERATION, self.state(turn), message))

    def allows(self, turn: Turn, message: str) -> bool:
        """Return whether `ITERATION` allows a message about a phase now."""
        return message in ITERATION.get(self.state(turn), {})

    def restore_grant(self, turn: Turn) -> None:
        """Record a phase that the owner holds according to a journal or an answer of the service."""
        is_first = turn.phase == "sync" and self._is_before(turn)
        self._set(turn, "first sync" if is_first else _HOLDS[turn.name])
        self._count()

    def grant(self, phase: PhaseName) -> None:
        """Grant a phase that the owner has asked for."""
        turn = self._named(phase)
        self.follow(turn, f"grant {turn.name}")

    def release(self, phase: PhaseName) -> None:
        """Release a phase that the owner holds."""
        turn = self._named(phase)
        self.follow(turn, f"release {turn.name}")
        self._count()
        self.last[phase] = turn
        if phase == "sync":
            self.syncs = turn.iteration + 1
        if phase != "rollout":
            self._end_trained()

    def drop(self, phase: PhaseName) -> None:
        """Record that a phase, if it is open, counts for nothing."""
        turn = self.open.get(phase)
        if turn is not None:
            self.follow(turn, "drop")

    @contextmanager
    def holding(self, turn: Turn) -> Iterator[None]:
        """Hold a granted phase, which counts unless it ends with an exception."""
        try:
            yield
        except BaseException:
            self.drop(turn.phase)
            raise
        self.release(turn.phase)

    def _is_before(self, turn: Turn) -> bool:
        """Return whether a phase comes before the owner's first iteration."""
        phase = turn.phase
        return phase == "init" or (phase == "sync" and turn.iteration == self.begins - 1)

    def _named(self, phase: PhaseName) -> Turn:
        """Return the open phase of a name. Raises `OutOfOrder` if there is none."""
        turn = self.open.get(phase)
        if turn is None:
            raise OutOfOrder(f"has not asked for the {phase}")
        return turn

    def _set(self, turn: Turn, state: str) -> None:
        if not turn.extra and self._is_before(turn):
            self._start = state
            self._list(turn, state)
            return
        if self._start != "begun":
            self._start = ITERATION.get(self._start, {}).get("begin", self._start)
        if turn.extra:
            self._evaluation = state
        elif state == "due":
            self._states.pop(turn.iteration, None)
        else:
            self._states[turn.iteration] = state
        self._list(turn, state)

    def _list(self, turn: Turn, state: str) -> None:
        """List a phase as open and granted, or remove it, as its state says."""
        phase = turn.phase
        if state in _OPEN:
            self.open[phase] = turn
            (self.granted.add if _OPEN[state] else self.granted.discard)(phase)
        elif self.open.get(phase) == turn:
            del self.open[phase]
            self.granted.discard(phase)

    def _end_trained(self) -> None:
        """Send `next` to the iterations before the last one that has been trained, and forget those that are over."""
        states = self._states
        for number in range(self._first, self.trainings - 1):
            if "next" in ITERATION.get(states[number], {}):
                self.follow(Turn("training", number), "next")
        while states.get(self._first) == "over":
            del states[self._first]
            self._first += 1

    def _count(self) -> None:
        """Count the rollouts and trainings that are over. What is over stays so, except in `go_back`."""
        states = self._states
        while states.get(self.rollouts, "due") not in _BEFORE_SAMPLED:
            self.rollouts += 1
        while states.get(self.trainings, "due") not in _BEFORE_TRAINED:
            self.trainings += 1


class Turns(IterationStates):
    """The phases that an owner may ask for next, over several iterations.

    - Each phase goes through the iterations in order.
    - An `init` and then a sync of the iteration before may come once each, before all other phases of the owner.
    - Without staleness an owner has one phase at a time, and an iteration begins when the training of the one before is over.
    - With staleness the owner may have a rollout and a training at the same time. A phase that is asked for too early waits:
      `must_wait` says whether.
    - An iteration counts when its sync is over or, without a sync, when the owner asks for the next one.

    Args:
        iterations: Number of iterations of the whole job, or None for any number.
        staleness: Staleness of the job.
        done: Number of iterations that count at the beginning, which is also the number of the owner's first iteration.

    Attributes:
        done: Number of iterations that count. The service sets it, because an iteration without a sync counts only when the next
            one is asked for.
    """

    def __init__(self, iterations: int | None = None, staleness: int = 0, done: int = 0) -> None:
        super().__init__(done)
        self._last, self._staleness = math.inf if iterations is None else iterations, staleness
        self.done = done

    @property
    def saved(self) -> dict[str, Any]:
        """The progress of the owner, from which `restore` continues.

        `done` is the number of iterations that count, `begins` that of the owner's first iteration, `first` that of the first one
        that is not over, `syncs` that of the last one whose sync is over, plus 1; `rollouts` and `trainings` count those that are
        over. `start`, `evaluation` and `states`, by number of the iteration, are states of the tables above. `last` and `open` are
        phases by name, and `granted` names those that are open and granted.
        """
        counts = {"done": self.done, "begins": self.begins, "first": self._first, "syncs": self.syncs}
        counts |= {"rollouts": self.rollouts, "trainings": self.trainings}
        states = {"start": self._start, "evaluation": self._evaluation, "states": dict(self._states)}
        return counts | states | {"last": dict(self.last), "open": dict(self.open), "granted": frozenset(self.granted)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with the progress that another owner's `saved` has returned."""
        self.done, self.begins, self._first, self.syncs = saved["done"], saved["begins"], saved["first"], saved["syncs"]
        self.rollouts, self.trainings = saved["rollouts"], saved["trainings"]
        self._start, self._evaluation = saved["start"], saved["evaluation"]
        self._states, self.last, self.open = dict(saved["states"]), dict(saved["last"]), dict(saved["open"])
        self.granted = {*saved["granted"]}

    @property
    def is_fresh(self) -> bool:
        """Whether the owner holds nothing and has finished no phase of an iteration since it attached."""
        return not self.open and not self._states and self._first == self.begins

    def go_back(self, iteration: int) -> None:
        """Let a fresh owner continue with an earlier iteration. Its init and its first sync are not repeated.

        Args:
            iteration: Number of the iteration to continue with.
        """
        super().go_back(iteration)
        self.done = iteration

    def must_wait(self, turn: Turn, measured: bool = False, leaves: bool = False) -> bool:
        """Return whether a phase of a job with staleness is the next one of its name but may not begin yet.

        Args:
            turn: The phase.
            measured: Whether the job is being profiled, with one phase at a time.
            leaves: Whether the job is about to leave its placement. Nothing new begins before that.
        """
        if not self._staleness:
            return False
        open_phases = self.open
        if leaves and open_phases:
            return True
        whole = turn.phase in ALL_NODES
        if any(phase != turn.phase and (measured or whole or phase in ALL_NODES) for phase in open_phases):
            return True
        staleness, number = 0 if measured else self._staleness, turn.iteration
        if turn.phase == "rollout" and not turn.extra:
            return number == self.rollouts and self.done + staleness < number < self._last
        return turn.phase == "training" and number == self.trainings == self.rollouts < self._last

    def check(self, turn: Turn) -> None:
        """Check that a phase can be the next one.

        Raises:
            OutOfOrder: It cannot.
        """
        for other in self.open.values():
            if not self._staleness or other.phase == turn.phase:
                raise OutOfOrder(f"has asked for the {other.phase} of iteration {other.iteration}; release it first")
        if not turn.extra and self.is_over(turn):
            raise OutOfOrder(f"the {turn.phase} of iteration {turn.iteration} is over")
        rollouts, trainings = self.rollouts, self.trainings
        due = self._due(turn.phase)
        last = self._last + (turn.phase == "init")  # after all iterations, an owner may still load its models and go back
        fits = self.allows(turn, f"ask {turn.name}") and (turn.extra or due == turn.iteration < last)
        if fits and (self._staleness or rollouts == trainings or turn.phase == "training"):
            return
        what = "init" if turn.phase == "init" else f"{'extra ' if turn.extra else ''}{turn.phase} of iteration {turn.iteration}"
        raise OutOfOrder(f"cannot begin the {what}; {self._next_one(due)}")

    def _due(self, phase: PhaseName) -> int:
        """Return the iteration whose phase of a name is the next one."""
        if phase == "rollout":
            return self.rollouts
        if phase == "training":
            return self.trainings
        return self.begins if phase == "init" else self.trainings - 1

    def _next_one(self, due: int) -> str:
        """Describe the phase that is due instead of one that cannot begin."""
        if self._staleness:
            return f"the next one is that of iteration {due}"
        if self.rollouts != self.trainings:
            return f"the next one is the training of iteration {self.trainings}"
        if self.rollouts >= self._last:
            return f"it has done its {self._last} iterations"
        return f"the next one is the rollout of iteration {self.rollouts}"

    @property
    def is_between(self) -> bool:
        """Whether the owner is between two iterations: it has no open phase, and no training waits for the end of its iteration."""
        return not self.open and self.trainings == self.done and (self._staleness > 0 or self.rollouts == self.trainings)

    def may_leave(self, turn: Turn) -> bool:
        """Return whether the owner may leave its placement instead of getting a phase. It then holds nothing and loses no work."""
        return not self.open and (self._staleness > 0 or turn.phase in ("init", "rollout"))

    def may_end(self, turn: Turn) -> bool:
        """Return whether the job may end when this phase is asked for, because an iteration begins."""
        return (self._staleness > 0 and turn.phase != "sync") or self.is_next(turn)

    def is_next(self, turn: Turn) -> bool:
        """Return whether asking for this phase implies that the iteration before is over. No sync of it was reported then."""
        return self.trainings > self.done and turn.phase == ("training" if self._staleness else "rollout") and not turn.extra

    def ask(self, turn: Turn, is_checked: bool = False) -> None:
        """Ask for a phase.

        Args:
            turn: The phase.
            is_checked: Whether `check` has been called, and nothing has changed since.

        Raises:
            OutOfOrder: As for `check`.
        """
        if not is_checked:
            self.check(turn)
        self.follow(turn, f"ask {turn.name}")

    def is_open(self, phase: PhaseName, iteration: int, extra: bool = False) -> bool:
        """Return whether the owner has asked for this phase and not released it. With `extra`, it must be an extra rollout."""
        turn = self.open.get(phase)
        return turn is not None and turn.iteration == iteration and (turn.extra or not extra)

    def may_release(self, phase: PhaseName, iteration: int, extra: bool = False) -> bool:
        """Return whether the owner holds a phase, or False if the phase is already over.

        Args:
            phase: Name of the phase.
            iteration: Number of its iteration.
            extra: Whether it must be a rollout that counts as no iteration. False if it may be either.

        Raises:
            OutOfOrder: The owner never had the phase, or it has not been granted yet.
        """
        last = self.last.get(phase)
        if self.is_open(phase, iteration, extra):
            if phase not in self.granted:
                raise OutOfOrder(f"the {phase} of iteration {iteration} has not been granted")
            return True
        if self.is_over(Turn(phase, iteration)) or (last is not None and last.iteration == iteration):
            return False
        raise OutOfOrder(f"does not hold the {phase} of iteration {iteration}")

    def check_synced(self, iteration: int) -> None:
        """Check that the sync of an iteration can be reported.

        Raises:
            OutOfOrder: The training of this iteration is not over, or that of the next one is.
        """
        if not self.allows(Turn("sync", iteration), "synced"):
            raise OutOfOrder(f"iteration {iteration} has no training that is over and waits for its sync")

    def synced(self, iteration: int) -> bool:
        """Record that the sync of an iteration is over. Return whether this is new. Raises as `check_synced`."""
        self.check_synced(iteration)
        self.follow(Turn("sync", iteration), "synced")
        is_new = self.syncs <= iteration
        self.syncs = iteration + 1
        return is_new

    def is_over(self, turn: Turn) -> bool:
        """Return whether a phase is over: the owner has released it, or its iteration is before the next one of that phase."""
        phase = turn.phase
        last = self.last.get(phase)
        if phase == "init":
            return last is not None
        if self._is_before(turn):
            return last is not None and last.iteration >= turn.iteration
        over = self.rollouts if phase == "rollout" else self.trainings if phase == "training" else self.syncs
        return turn == last or (not turn.extra and turn.iteration < over)
