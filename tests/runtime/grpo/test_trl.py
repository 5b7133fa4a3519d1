"""The example around TRL's trainer: what its checkpoints hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime.execution.randomness import keep_randomness, random_states, restore_randomness

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of other people's packages about each other
def test_a_trainer_that_was_restarted_trains_the_very_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    import torch

    monkeypatch.syspath_prepend(str(EXAMPLES))
    from trl_job import TrlGrpo  # type: ignore[import-not-found] # of the examples

    def job() -> TrlGrpo:
        return TrlGrpo(prompts=2, group_size=4, max_tokens=8)

    def iterations(one: TrlGrpo, count: int) -> list[torch.Tensor]:
        for _ in range(count):
            one.rollout()
            one.train()
        return [parameter.detach().clone() for parameter in one._trainer.model.parameters()]  # noqa: SLF001 (no one else asks TRL for its weights)

    first = job()
    iterations(first, 2)
    first.checkpoint(tmp_path)
    keep_randomness(tmp_path, random_states())
    whole = iterations(first, 2)
    first.close()
    again = job()
    again.restore(tmp_path)
    restore_randomness(tmp_path)
    resumed = iterations(again, 2)
    again.close()
    assert again._trainer.state.global_step == 4  # noqa: SLF001 (of the same trainer)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".pt", ".bin", ".pkl")]
    sys.modules.pop("trl_job", None)
