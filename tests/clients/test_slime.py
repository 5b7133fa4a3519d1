"""The driver for slime, with stand-ins for slime's modules and actors: they record what is called, and whose turn it was.

slime itself needs GPUs, Megatron and SGLang, and is not run here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.clients.little_service import LittleService

Notes = list[tuple[str, tuple[str, ...]]]
Train = Callable[..., Notes]


class Actor:
    """A stand-in: every method and every remote method notes that it was called."""

    def __init__(self, note: Callable[[str], None], name: str) -> None:
        self._note, self._name = note, name

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any, **options: Any) -> str:
            self._note(f"{self._name}.{method}" if self._name == "actor" else method)
            return method

        return call if self._name == "actor" else SimpleNamespace(remote=call)


@pytest.fixture
def train(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> Train:
    notes: Notes = []

    def note(what: str) -> None:
        notes.append((what, tuple(service.held)))

    def is_due(k: int, interval: int | None, per_epoch: int | None = None, total: int | None = None) -> bool:
        return interval is not None and ((k + 1) % interval == 0 or k + 1 == total)

    modules: dict[str, dict[str, Any]] = {
        "slime.observability.logging_utils": dict.fromkeys(
            ("configure_logger", "init_tracking", "finish_tracking"), lambda *_: None
        ),
        "slime.ray.placement_group": {
            "create_placement_groups": lambda args: {"rollout": None},
            "create_rollout_manager": lambda args, group: (Actor(note, "manager"), None),
            "create_training_models": lambda args, groups, manager: (Actor(note, "actor"), None),
        },
        "slime.utils.arguments": {"parse_args": lambda: None},
        "slime.utils.misc": {"should_run_periodic_action": is_due},
    }
    for name, members in modules.items():
        parts = name.split(".")
        for k in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:k]), ModuleType(".".join(parts[:k])))
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda reference: reference))
    monkeypatch.delitem(sys.modules, "rollmux_slime", raising=False)
    driver = importlib.import_module("rollmux_slime")
    monkeypatch.delitem(sys.modules, "rollmux_slime")

    def run(**options: Any) -> Notes:
        usual = {
            "use_critic": False,
            "release_train": False,
            "offload_rollout": False,
            "offload_train": False,
            "num_rollout": 2,
            "colocate": False,
        }
        more = {"start_rollout_id": 0, "eval_interval": None, "save_interval": None, "skip_eval_before_train": False}
        service.jobs["one"].iterations = usual["num_rollout"]
        driver.train(SimpleNamespace(**usual | more | {"rollout_global_dataset": False} | options))
        return notes

    return run


ROLLOUT, TRAINING, BOTH = ("rollout",), ("training",), ("rollout", "training")
MADE = ("get_updatable_engines_and_lock", BOTH)  # which waits until they are there; slime itself has offloaded those that it can


def test_engines_that_share_gpus_with_the_trainer_are_there_in_their_turn_alone(train: Train, service: LittleService) -> None:
    there = [("onload_weights", ROLLOUT), ("actor.update_weights", ROLLOUT), ("onload_kv", ROLLOUT)]
    step = [*there, ("generate", ROLLOUT), ("offload", ROLLOUT), ("actor.async_train", TRAINING)]
    evaluation = [*there, ("eval", ROLLOUT), ("offload", ROLLOUT)]
    notes = train(colocate=True, offload_rollout=True, offload_train=True, eval_interval=2, save_interval=2)
    assert notes == [MADE, *evaluation, *step, *step, ("actor.save_model", TRAINING), *evaluation, ("dispose", ())]
    assert service.jobs["one"].state == "done" and service.granted[0].phase == "init"


@pytest.mark.parametrize("offloads", [False, True])
def test_weights_go_between_separate_gpus_when_both_sides_are_free(train: Train, service: LittleService, offloads: bool) -> None:
    clears = [] if offloads else [("actor.clear_memory", TRAINING)]
    step = [("generate", ROLLOUT), ("actor.async_train", TRAINING), *clears]
    sync = [("actor.update_weights", BOTH)]
    options = {"offload_rollout": offloads, "offload_train": offloads}  # slime keeps engines on GPUs of their own in any case
    notes = train(eval_interval=2, skip_eval_before_train=True, **options)
    made = [MADE, *[(what, BOTH) for what, _ in clears]]
    assert notes == [*made, *sync, *step, *sync, *step, *sync, ("eval", ROLLOUT), ("dispose", ())]
    assert [turn.phase for turn in service.granted] == ["init", "sync", *["rollout", "training", "sync"] * 2, "rollout"]
    assert [turn.iteration for turn in service.granted if turn.phase == "sync"] == [-1, 0, 1]


def test_a_checkpoint_that_is_older_than_the_count_is_where_it_goes_on(train: Train, service: LittleService) -> None:
    service.jobs["one"].iteration = 1
    notes = train(start_rollout_id=0, skip_eval_before_train=True)
    assert [what for what, _ in notes].count("generate") == 2
    assert [turn.iteration for turn in service.granted] == [1, -1, 0, 0, 0, 1, 1, 1]  # init, the first weights, and two iterations


@pytest.mark.parametrize("options", [{"use_critic": True}, {"release_train": True}, {"colocate": True, "offload_train": True}])
def test_what_cannot_be_done_in_turns_is_refused(train: Train, options: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="rollmux_slime"):
        train(**options)
