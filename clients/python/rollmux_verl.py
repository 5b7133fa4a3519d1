"""verl's synchronous PPO trainer as a job that takes turns: `trainer.v1.trainer_mode=rollmux`, with settings that offload.

`pip install rollmux-client` is enough: verl (0.9) loads this module by its entry point in the group `verl.plugins`.

- Everything is loaded and started in a turn of `init`. At its end the engines sleep and the models are in host memory.
- The turn of `rollout` begins with a step, because verl sends prompts to the engines before it samples. It ends when all samples
  are complete and the engines sleep.
- The turn of `training` lasts from there to the end of the step, including a checkpoint. Both turns together are an iteration.
- verl wakes its engines at the end of a step to give them new weights. Here this happens at the start of the next turn of
  `rollout`, so that their memory is not allocated earlier.
- A validation is a rollout that counts as no iteration. The engines sleep after it.
- verl's workers empty their cache after parameters have left the GPU, but the optimizer's state leaves later. Therefore they are
  asked to offload once more at the end of `init` and `training`, which also releases the memory of the optimizer's state.

Trainer and engines share their GPUs in this mode, so the service's cluster has one pool (`one_device: true`). Written for verl of
2026-08-22 (commit 1dda039b9c6311889a9c9a26040677e1254814f9).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import rollmux_client
import rollmux_devices
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

__all__ = ["PPOTrainerInTurns"]


@register_trainer("rollmux")
class PPOTrainerInTurns(PPOTrainerSync):  # type: ignore[misc]
    """`PPOTrainerSync` in turns with other jobs. It is attached to the service from `init` to the end of `fit`.

    Raises:
        ValueError: Settings would leave something on the GPUs between the job's turns. The message says what to set.
    """

    def __init__(self, config: Any) -> None:
        if missing := [*settings_missing(config)]:
            raise ValueError(f"rollmux_verl: it would stay on the GPUs between its turns; set {' '.join(missing)}")
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # the value that the replay buffer and other parts of verl check
        super().__init__(config)
        self._job = rollmux_client.attach()
        self._turn: rollmux_client.PhaseContext | None = None
        self._weights: int | None = None  # step whose weights the engines still have to get

    def init(self) -> None:
        """Wait for the job's nodes and its turn, load everything, and state where the training continues."""
        self._job.__enter__()
        try:
            self._begin("init")
            super().init()
            self._offload()
            self._end()
            self._job.check_total(self.total_training_steps)
            self._job.continue_from(self.global_steps)
        except BaseException:
            self._job.__exit__(*sys.exc_info())
            raise

    def fit(self, agent_loop_manager: Any) -> None:
        """Train in turns with other jobs."""
        with contextlib.ExitStack() as stack:
            stack.push(self._job)
            if self.global_steps < self.total_training_steps:  # a checkpoint may have all of them already
                super().fit(agent_loop_manager)

    def on_init_end(self) -> None:
        """Note that the engines still need the loaded weights."""
        self._weights = self.global_steps

    def on_step_begin(self) -> None:
        """Begin the turn of rollout, and wake the engines with new weights."""
        super().on_step_begin()
        self._begin("rollout")
        self._wake()

    def on_sample_end(self) -> None:
        """End the turn of rollout, and begin that of training."""
        super().on_sample_end()  # after this the engines sleep
        self._end()
        self._begin("training")

    def on_step_end(self) -> None:
        """Offload the models, and end the turn of training and the iteration."""
        self._weights = self.global_steps
        self._offload()
        self._end()
        self._job.iteration += 1

    def on_validate_begin(self) -> None:
        """Begin a turn of rollout that counts as no iteration, and wake the engines."""
        super().on_validate_begin()
        self._begin("rollout", extra=True)
        self._wake()

    def on_validate_end(self) -> None:
        """Put the engines to sleep, and end their turn."""
        super().on_validate_end()
        self.checkpoint_manager.sleep_replicas()
        self._weights = self._loaded
        self._end()

    def _wake(self) -> None:
        """Wake the engines, and send them weights that they still have to get."""
        self._loaded, self._weights = self._weights, None
        with marked_timer("update_weights", getattr(self, "timing_raw", {}), color="red"):
            self.checkpoint_manager.update_weights(self._loaded)

    def _offload(self) -> None:
        """Move everything of the models from the GPUs, and empty their caches."""
        for workers in (self.actor_rollout_wg, getattr(self, "critic_wg", None)):
            if workers is not None:
                workers.to("cpu", model=True, optimizer=False, grad=True)

    def _begin(self, phase: str, extra: bool = False) -> None:
        turn = self._job.phase(phase, extra=extra)
        self._job.acquire(turn)
        self._turn = turn

    def _end(self) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        rollmux_devices.report(self._job, turn)
        self._job.release(turn)


def settings_missing(config: Any) -> Iterator[str]:
    """Yield the missing settings, in the form of verl's command line, without which a job would stay on its GPUs."""
    if not OmegaConf.select(config, "actor_rollout_ref.rollout.free_cache_engine"):
        yield "actor_rollout_ref.rollout.free_cache_engine=True"
    models = {"actor_rollout_ref.actor": "fsdp_config"} | ({"critic": "fsdp"} if need_critic(config) else {})
    for model, of_fsdp in models.items():
        strategy = OmegaConf.select(config, f"{model}.strategy")
        engine = of_fsdp if strategy.startswith("fsdp") else strategy
        kinds = ["param_offload", "optimizer_offload", *(["grad_offload"] if strategy == "megatron" else [])]
        yield from _unset(config, *(f"{model}.{engine}.{kind}" for kind in kinds))
    if need_reference_policy(config) and OmegaConf.select(config, "actor_rollout_ref.ref.strategy") == "megatron":
        yield from _unset(config, "actor_rollout_ref.ref.megatron.param_offload")  # FSDP always offloads reference models


def _unset(config: Any, *keys: str) -> Iterator[str]:
    return (f"{key}=True" for key in keys if not OmegaConf.select(config, key))
