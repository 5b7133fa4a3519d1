"""The script that shows our environments to Stable-Baselines3 runs, and the page shows it as it is."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "sb3_agent.py"


def test_the_script_trains_and_plays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "500"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    out = capsys.readouterr().out
    assert re.search(r"total_timesteps +\| 2560 ", out)
    cost = re.search(r"cost over Solo-D on held-out streams: (.+)", out)
    assert cost and 0.5 < float(cost[1]) <= 1.0  # a mixed stream's jobs share, or stay alone at worst
    references = dict(re.findall(r"^of (.+): ([\d.]+), over the agent's [\d.]+ ± [\d.]+$", out, re.M))
    assert [*references] == ["masked-random", "untrained", "first-fit", "rollmux", "rollmux,prune=false"]
    assert all(0.5 < float(value) <= 1.0 for value in references.values())


def test_the_page_shows_the_script() -> None:
    code = SCRIPT.read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in (ROOT / "docs" / "guides" / "environments.md").read_text()
