"""The dispatch environment: one co-execution group, phase by phase, as arrays."""

from __future__ import annotations

from pathlib import Path

from rollmux_env.kernel.compiled import drop_stale

drop_stale(Path(__file__).parent)
