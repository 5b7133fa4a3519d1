"""What a system makes of its GPUs: the constants of the phase-time model, as named calibrations.

`ROLLMUX` has four numbers fitted to RollMux's phase and sync times (docs/reference/timing.md); `PHYSICAL` has what data sheets and
verl's published table say of any system. A file of `rollmux profile` is a calibration of the device that it was measured on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

SLOT_BYTES = 64  # of a padded position that the controller sends: ids, masks, positions, labels and log-probabilities


@dataclass(frozen=True)
class Calibration:
    """What engines, trainers and links of a system reach, the same for all its GPUs and models.

    Attributes:
        name: of it. arithmetic: share of the peak that dense matrix products reach. grouped: of that, what products of many experts
            reach. link: share of a network link's peak that weights travel at.
        step_s, layer_s, eager_layer_s: fixed seconds of a decode step, and of each layer of it, replayed from a graph or launched
            one kernel at a time. prefill_s: fixed seconds of reading a prompt.
        recomputed: forward passes that an update makes once more, as activations are not kept. elementwise: whether training pays
            for what is no matrix product. padded: whether trainers pad responses to the longest of their mini-batch.
        update_s: fixed seconds of a training phase. controller_gb_s: at which one controller sends a batch, padded to the cap, to
            each phase. response_s: for the reward of a response. fetch_s: to fetch a response from a queue, one by one.
    """

    name: str
    arithmetic: float
    link: float
    step_s: float
    grouped: float = 1.0
    layer_s: float = 0.0
    eager_layer_s: float = 0.0
    prefill_s: float = 0.0
    recomputed: int = 0
    elementwise: bool = False
    padded: bool = False
    update_s: float = 0.0
    controller_gb_s: float = inf
    response_s: float = 0.0
    fetch_s: float = 0.0

    def controller_s(self, positions: float) -> float:
        """Seconds in which the controller sends so many positions of a padded batch to a phase."""
        return positions * SLOT_BYTES / (self.controller_gb_s * 1e9)


ROLLMUX = Calibration("rollmux", 0.188, 0.848, 0.0168, prefill_s=0.01, padded=True, update_s=20.1)
"""Least squares in log space over the published rows of RollMux; `python benchmarks/timing.py --fit` finds `arithmetic`, `link`,
`step_s` and `update_s` again."""

PHYSICAL = Calibration(
    "physical",
    arithmetic=0.7,
    link=ROLLMUX.link,
    step_s=0.002,
    grouped=0.55,
    layer_s=6e-5,
    eager_layer_s=6e-4,
    recomputed=1,
    elementwise=True,
    controller_gb_s=0.35,
    response_s=5e-4,
    fetch_s=0.003,
)
"""Chosen on verl's table; NeMo-RL's is held out (docs/results/fidelity.md)."""

CALIBRATIONS = {calibration.name: calibration for calibration in (ROLLMUX, PHYSICAL)}
