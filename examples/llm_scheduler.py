"""A language model learns to place jobs: the task of llm_scheduler.yaml, and a look at what it has learned.

    rollmux run examples/llm_scheduler.yaml --out run
    rollmux export run first --to scheduler
    python examples/llm_scheduler.py scheduler

A prompt is a decision of the placement environment in words, a response the number of a choice, and the reward what that choice
saves: in Solo-D's dollars of the stream, against the cheapest choice, if the cheapest choice is taken from then on. A response that
is no allowed choice costs the environment's penalty. Streams are those of `Toy`, four jobs whose best placement costs half of
Solo-D; the cheapest choice alone ends at 0.75.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy
from rollmux_env.envs.placement.wording import allowed_choices, decision_text
from rollmux_env.portable import FIRST_DRAWN_SEED
from runtime.jobs.tasks import TaskExample, generator

INVALID = -1
HELD_OUT = range(32)  # streams that no training draws


class Decisions:
    """Streams of jobs, to be played decision by decision from the beginning."""

    def __init__(self) -> None:
        self.env = PlacementVectorEnv(1, Toy(rounds=1), skip_forced=True, autoreset_mode="Disabled")
        self.returned = 0.0
        self.over = False

    def begin(self, stream: int, choices: Sequence[int] = ()) -> None:
        """Start a stream, and make the first choices."""
        self.observation, _ = self.env.reset(options={"stream_seed": stream})
        self.returned, self.over = 0.0, False
        for choice in choices:
            self.choose(choice)

    def choose(self, choice: int) -> None:
        """Make a choice, and go on to the next decision that has several."""
        self.observation, rewards, over, _, _ = self.env.step(np.array([choice]))
        self.returned += float(rewards[0])
        self.over = bool(over[0])

    def prompt(self) -> str:
        """Return the decision in words."""
        return f"{decision_text(self.env, self.observation)}\nChoice: "

    def allowed(self) -> list[int]:
        """Return the choices that may be made."""
        return allowed_choices(self.env, 0)

    def cheapest(self) -> int:
        """Return the choice that adds the fewest dollars per hour, a new group only if no other is as cheap."""
        allowed = self.allowed()
        return min(allowed, key=lambda choice: (self.env.choices[0, choice]["usd"], choice == 0))

    def finish(self, choose: Callable[[], int]) -> float:
        """Play to the end, and return minus the stream's cost over Solo-D's."""
        while not self.over:
            self.choose(choose())
        return self.returned


class Scheduler:
    """The task: example number n is a decision of a drawn stream, after random earlier choices.

    Args:
        seed: Seed of the job.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._play = Decisions()

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return examples number `position` to `position + count - 1`."""
        return [self._example(number) for number in range(position, position + count)]

    def reward(self, example: TaskExample, response: str) -> float:
        """Return what the response saves."""
        savings: dict[str, float] = example.record["savings"]
        return savings.get(response.strip(), savings[str(INVALID)])

    def _example(self, number: int) -> TaskExample:
        draw, play = generator(self._seed, "llm-scheduler", number), self._play
        stream, decision, before = int(draw.integers(FIRST_DRAWN_SEED, 2**31)), draw.integers(3), []
        play.begin(stream)
        while len(before) < decision:
            before.append(int(draw.choice(play.allowed())))
            play.choose(before[-1])
            if play.over:  # these choices leave none
                before = []
                play.begin(stream)
        prompt, cheapest, choices = play.prompt(), play.cheapest(), [*play.allowed(), INVALID]
        returns = {}
        for choice in choices:
            play.begin(stream, [*before, choice])
            returns[choice] = play.finish(play.cheapest)
        savings = {str(choice): returns[choice] - returns[cheapest] for choice in choices}
        return TaskExample(prompt, str(max(choices, key=returns.__getitem__)), {"savings": savings})


def main(folder: str) -> None:
    """Print the cost of held-out streams over Solo-D's, as the model places their jobs and by the cheapest choice."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, use_safetensors=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    play = Decisions()

    def answer() -> int:
        with torch.no_grad():
            token = model(**tokenizer(play.prompt(), return_tensors="pt")).logits[0, -1].argmax()
        text = tokenizer.decode(token).strip()
        return int(text) if text.isdecimal() else INVALID

    for name, choose in (("model", answer), ("cheapest choice", play.cheapest)):
        costs = []
        for stream in HELD_OUT:
            play.begin(stream)
            costs.append(-play.finish(choose))
        spread = f"{min(costs):.3f} to {max(costs):.3f}"
        print(f"{name}: {np.mean(costs):.3f} of Solo-D's dollars on {len(costs)} held-out streams ({spread})")
    print(f"best placement: {Toy.best:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
