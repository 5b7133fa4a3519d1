"""The random generators of a job's own process, kept with its checkpoint: those of Python, NumPy and torch that are global."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

RANDOM = "random.json"


def random_states() -> dict[str, Any]:
    """Their states, as JSON has them."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the global generator is the one that has to be kept)
    states: dict[str, Any] = {"python": [version, words, gauss], "numpy": [kind, [int(key) for key in keys], *rest]}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist()).hex()
    return states


def keep_randomness(folder: Path, states: dict[str, Any]) -> None:
    """Write states."""
    (folder / RANDOM).write_text(json.dumps(states))


def restore_randomness(folder: Path) -> None:
    """Go on from the states that were kept."""
    states = json.loads((folder / RANDOM).read_bytes())
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    if "torch" in states:
        import torch

        torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
