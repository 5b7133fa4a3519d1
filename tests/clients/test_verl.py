"""The trainer for verl: verl's own `fit` and `step`, with workers that record whose turn it was.

Needs verl 0.9, which asks for an environment of its own. Beside the one of this project, for these tests: PYTHONPATH=DIR after
`pip install --target DIR --no-deps verl==0.9.1 'transformers<5.11' 'tokenizers<=0.23.0' 'huggingface_hub<2' 'tensordict<0.11'
TransferQueue torchdata hydra-core omegaconf codetiming orjson peft pylatexenc pyvers antlr4-python3-runtime==4.9.3 pyzmq msgspec
dill`, and the folder `tests` that comes with one of them removed. They passed with verl 0.9.1 and with its 1dda039b.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import rollmux_client

from rollmux_env.files import EXAMPLES
from tests.clients.little_service import LittleService, Turn

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other people's packages about each other
]
CLIENT = Path(rollmux_client.__file__).parent


class Recorder:
    """Workers, engines, samples: notes what is asked of it, and which nodes are held then."""

    def __init__(self, service: LittleService) -> None:
        self.service, self.notes = service, list[tuple[str, tuple[str, ...]]]()

    def note(self, what: str) -> None:
        self.notes.append((what, tuple(self.service.held)))

    def update_weights(self, version: int) -> None:
        self.note(f"weights {version}")

    def sleep_replicas(self) -> None:
        self.note("sleep")

    def to(self, device: str, **what: bool) -> None:
        self.note("offload")

    def generate_sequences(self, batch: Any) -> None:
        self.note("generate")

    def sample(self, **options: Any) -> tuple[Any, dict[str, float]]:
        from transfer_queue import KVBatchMeta

        self.note("sample")
        return KVBatchMeta(partition_id="train", keys=["a"], tags=[{}], extra_info={}), {}

    reward_loop_worker_handles: tuple[str, ...] = ("they are streamed",)


@pytest.fixture
def trainer(service: LittleService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real class, `fit`, `step` and hooks; what would be done by workers on GPUs is recorded."""
    import rollmux_verl
    import verl
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base

    recorder = Recorder(service)

    class Recorded(rollmux_verl.PPOTrainerInTurns):
        def _setup(self) -> None:
            self.recorder = self.actor_rollout_wg = recorder
            self.checkpoint_manager = self.replay_buffer = self.reward_loop_manager = recorder
            self.global_steps, self.total_training_steps, self.steps_per_epoch = 0, 3, 3
            self._init_dump_executor()
            recorder.note("loaded")

        def _add_batch_to_generate(self) -> None:
            self.agent_loop_manager.generate_sequences(None)

        def _balance_batch(self, batch: Any, metrics: Any) -> Any:
            return batch

        _compute_old_log_prob = _compute_ref_log_prob = _compute_values = _compute_advantage = _update_critic = _balance_batch

        def _update_actor(self, batch: Any, metrics: Any) -> Any:
            recorder.note("update")
            return batch

        def _save_checkpoint(self) -> None:
            recorder.note("save")

        def _validate(self) -> dict[str, float]:
            recorder.note("validate")
            return {"reward": 1.0}

        def _compute_metrics(self, *arguments: Any, **options: Any) -> None: ...
        def _start_profiling(self) -> None: ...
        def _stop_profiling(self) -> None: ...

    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **_: recorder.note("clear"))
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    changes: dict[str, Any] = {
        "trainer.v1.trainer_mode": "rollmux",
        "trainer.save_freq": 3,
        "trainer.test_freq": 2,
        "trainer.total_epochs": 1,
    }
    for kind in ("param_offload", "optimizer_offload"):
        changes[f"actor_rollout_ref.actor.fsdp_config.{kind}"] = True
    changes["algorithm.adv_estimator"] = "grpo"  # without a critic
    for key, value in {**changes, "trainer.logger": ["console"], "trainer.val_before_train": False}.items():
        OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.set_struct(config, True)
    return Recorded(config)


def test_what_uses_gpus_is_in_a_turn(trainer: Any, service: LittleService) -> None:
    trainer.init()
    trainer.fit(trainer.recorder)
    rollout, training, nothing = ("rollout",), ("training",), ()
    both, away = ("rollout", "training"), ("offload", training)
    step = [("generate", rollout), ("sample", rollout), ("sleep", rollout), ("update", training)]
    validation = [("validate", rollout), ("sleep", rollout)]
    assert trainer.recorder.notes == [
        *[("loaded", both), ("offload", both)],
        *[("weights 0", rollout), *step, away, ("clear", nothing)],
        *[("weights 1", rollout), *step, away, ("weights 2", rollout), *validation, ("clear", nothing)],
        *[("weights 2", rollout), *step, ("save", training), away, ("weights 3", rollout), *validation, ("clear", nothing)],
    ]
    assert service.granted[0] == Turn("one", "init", 0, False)
    assert [turn for turn in service.granted[1:] if not turn.extra] == [
        Turn("one", phase, k, False) for k in range(3) for phase in ("rollout", "training")
    ]
    assert service.jobs["one"].state == "done" and trainer.config.trainer.v1.trainer_mode == "sync"


def test_an_error_in_the_middle_gives_the_lease_back(trainer: Any, service: LittleService, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: Any, metrics: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer, "_update_actor", fail)
    trainer.init()
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit(trainer.recorder)
    assert service.jobs["one"].state == "queued" and not service.held


@pytest.mark.parametrize("name", ["verl_fsdp", "verl_megatron"])
def test_the_command_lines_are_ones_that_verl_takes_and_that_offload_all(name: str) -> None:
    """verl's own configuration, with what the launcher's file sets; without one of these settings the plugin names it."""
    import verl
    from hydra import compose, initialize_config_dir
    from rollmux_verl import settings_missing

    words = (EXAMPLES / "launch" / f"{name}.sh").read_text().split()
    words = [word for word in words[words.index("verl.trainer.main_ppo") + 1 :] if "=" in word and "$" not in word]
    offloads = [word for word in words if word.endswith(("_offload=True", "free_cache_engine=True"))]
    assert len(offloads) == {"verl_fsdp": 3, "verl_megatron": 5}[name]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        assert [*settings_missing(compose("ppo_trainer", words))] == []
        for one in offloads:
            others = [word for word in words if word != one] + [one.replace("True", "False")]
            missing = [*settings_missing(compose("ppo_trainer", [*others, "actor_rollout_ref.actor.use_kl_loss=True"]))]
            assert one in missing and {*missing} <= {*offloads}


def test_verl_finds_it_by_its_entry_point(tmp_path: Path) -> None:
    shutil.copytree(CLIENT, tmp_path / "source")  # where it is built, things are left
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path)]
    subprocess.run([*install, str(tmp_path / "source")], check=True)
    script = "from verl.trainer.ppo.v1 import get_trainer_cls; print(get_trainer_cls('rollmux'))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "<class 'rollmux_verl.PPOTrainerInTurns'>\n"
