"""Rollout replicas, token by token: the plain definition of `rollmux_env.kernel.rollouts`, without policies."""

from __future__ import annotations

from dataclasses import dataclass

from rollmux_env.timing.replica import ReplicaTiming


@dataclass
class Sequence:
    """A response: its number, tokens of its prompt, of itself in the end, and so far."""

    number: int
    prompt: int
    length: int
    sampled: int = 0

    @property
    def context(self) -> int:
        return self.prompt + self.sampled


def roll_replica(timing: ReplicaTiming, queue: list[Sequence], most: int) -> tuple[dict[int, float], int]:
    """One replica until its queue is empty: ({response: seconds at its end}, preemptions)."""
    now_s, batch, ends, preemptions = 0.0, list[Sequence](), dict[int, float](), 0
    queue = list(queue)
    settle = True
    while queue or batch:
        while settle and queue and len(batch) < most:
            if sum(one.context for one in batch) + queue[0].context + len(batch) + 1 > timing.kv_tokens:
                break
            batch.append(queue.pop(0))
            now_s += timing.prefill_seconds(batch[-1].context)
        settle = False
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
                ends[one.number] = now_s
                settle = True
        batch = [one for one in batch if one.sampled < one.length]
    return ends, preemptions
