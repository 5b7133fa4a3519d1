"""`tail-batching` (RollPacker, arXiv 2509.21009): defers long responses to a few long rounds."""

from __future__ import annotations

from dataclasses import dataclass

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.policy import JobPolicy, Stay
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class TailBatching:
    """Short rounds that launch more than they need, and long ones for what those leave; see `policies.rollout.rounds`.

    Args:
        eta: how many times as many prompts, and responses to each, a short round launches; the paper's 1.25.
        each_engine: every engine has a share of the prompts and ends it for itself, as the engines of real jobs do; False: the
            round is over for all of them with the last prompt that it wants, as in the paper.
    """

    eta: float = 1.25
    each_engine: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.eta, bool) or not isinstance(self.eta, int | float) or not 1 < self.eta <= 2:
            raise ValueError(f"eta must be a number above 1 and at most 2, not {self.eta}")
        if not isinstance(self.each_engine, bool):
            raise ValueError(f"each_engine must be true or false, not {self.each_engine}")

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Short and long rounds; responses stay where they were launched."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, self.eta), Stay())
