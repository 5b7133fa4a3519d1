"""Rollout replicas, token by token: the plain definition of `rollmux_env.kernel.rollouts`, without policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from rollmux_env.kernel.rollout_records import TIE_S
from rollmux_env.timing.replica import ReplicaTiming


@dataclass
class Sequence:
    """A response: its number, tokens of each prompt, of itself at the end of its turn, and so far; of its later turns.

    Between two turns it is back at `back_s`, and `cached` tokens of it are in the cache until others need the room.
    """

    number: int
    prompt: int
    length: int
    sampled: int = 0
    later: list[int] = field(default_factory=list)
    reads: int = 0
    back_s: float = 0.0
    cached: int = 0

    def __post_init__(self) -> None:
        self.reads = self.prompt

    @property
    def context(self) -> int:
        return self.prompt + self.sampled


def _age(one: Sequence) -> tuple[float, int]:
    return one.back_s, one.number


def roll_replica(timing: ReplicaTiming, queue: list[Sequence], most: int, away_s: float = 0.0) -> tuple[dict[int, float], int]:
    """One replica until its queue is empty: ({response: seconds at its end}, preemptions)."""
    now_s, batch, ends, preemptions = 0.0, list[Sequence](), dict[int, float](), 0
    queue, away = list(queue), list[Sequence]()

    def make_room(tokens: int, but: Sequence | None) -> bool:
        others = sorted((one for one in (*queue, *away) if one is not but), key=_age)
        free = timing.kv_tokens - sum(one.context for one in batch) - tokens
        if free < 0:
            return False
        while sum(one.cached for one in others) > free:
            next(one for one in others if one.cached).cached = 0
        return True

    def back(until_s: float) -> list[Sequence]:
        found = sorted((one for one in away if one.back_s <= until_s), key=_age)
        for one in found:
            away.remove(one)
        queue.extend(found)
        return found

    settle = True
    while queue or batch or away:
        settle = bool(back(now_s - TIE_S)) or settle  # during the last step
        if not batch and not queue:
            now_s = max(now_s, min(one.back_s for one in away))
        while True:
            while settle and queue and len(batch) < most and make_room(queue[0].context + len(batch) + 1, queue[0]):
                batch.append(queue.pop(0))
                cached_s = timing.prefill_seconds(batch[-1].cached) - timing.prefill_s
                now_s += timing.prefill_seconds(batch[-1].context) - cached_s
                batch[-1].cached = 0
            if batch:
                make_room(len(batch), None)
            first_s = min((one.back_s for one in away), default=inf)
            if first_s > now_s + TIE_S:
                break
            back(first_s + TIE_S)
            settle = True
        settle = False
        if not batch:
            continue
        context = sum(one.context for one in batch)
        if context + len(batch) > timing.kv_tokens:
            queue.insert(0, batch.pop())
            preemptions += 1
            continue
        now_s += timing.decode_s(len(batch), context)
        for one in batch:
            one.sampled += 1
        for one in batch:
            if one.sampled == one.length:
                settle = True
                if one.later:
                    one.cached, one.back_s = one.context, now_s + away_s
                    one.prompt += one.reads
                    away.append(one)
                else:
                    ends[one.number] = now_s
        batch = [one for one in batch if one.sampled < one.length]
        for one in away:
            if one.sampled == one.length:
                one.length += one.later.pop(0)
    return ends, preemptions
