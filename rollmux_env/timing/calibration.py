"""Calibrations: the constants of the phase-time model that describe how well a system uses its GPUs.

`ROLLMUX` has four numbers fitted to the phase and sync times that RollMux publishes (docs/reference/timing.md). `PHYSICAL` has
values from data sheets and from verl's published table. A file of `rollmux profile` measures one device and names the calibration
that holds for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

SLOT_BYTES = 64  # bytes per padded position sent by the controller: ids, masks, positions, labels, log-probabilities


@dataclass(frozen=True)
class Calibration:
    """Constants of a system's engines, trainers and links, the same for all its GPUs and models.

    Attributes:
        name: Name of the calibration.
        arithmetic: Share of the peak rate that dense matrix products reach.
        link: Share of a network link's peak rate that transfers of weights reach.
        step_s: Fixed overhead of a decode step, in seconds.
        grouped: Rate of the grouped matrix products of a mixture of experts, as a share of the dense rate.
        layer_s: Fixed overhead of each layer of a decode step that is replayed from a CUDA graph, in seconds.
        eager_layer_s: Fixed overhead of each layer of a decode step whose kernels are launched one at a time, in seconds.
        prefill_s: Fixed overhead of a prefill, in seconds.
        recomputed: Number of additional forward passes of an update because activations are recomputed.
        elementwise: Whether training also pays for operations other than matrix products.
        padded: Whether trainers pad responses to the longest of their mini-batch.
        update_s: Fixed overhead of a training phase, in seconds.
        controller_gb_s: Rate at which the controller sends a batch, padded to the cap, to each phase, in GB/s.
        response_s: Time to compute the reward of one response, in seconds.
        fetch_s: Time to fetch one response from a queue, in seconds.
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
        """Return the seconds in which the controller sends `positions` tokens of a padded batch to a phase."""
        return positions * SLOT_BYTES / (self.controller_gb_s * 1e9)


ROLLMUX = Calibration("rollmux", 0.188, 0.848, 0.0168, prefill_s=0.01, padded=True, update_s=20.1)
"""Fitted to RollMux's published rows by least squares in log space.

`python benchmarks/timing.py --fit` repeats the fit of `arithmetic`, `link`, `step_s` and `update_s`.
"""

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
"""Chosen on verl's table and tested on NeMo-RL's, which was not used for the choice (docs/results/fidelity.md)."""

CALIBRATIONS = {calibration.name: calibration for calibration in (ROLLMUX, PHYSICAL)}
"""All calibrations by name."""
