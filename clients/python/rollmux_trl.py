"""TRL's GRPOTrainer as a job that takes turns: `rollmux_trl.GRPOTrainer` where a script has `trl.GRPOTrainer`.

    with rollmux_trl.attach() as job:
        trainer = rollmux_trl.GRPOTrainer(model=..., reward_funcs=..., args=GRPOConfig(...), job=job)
        trainer.train()

- A turn of `rollout` is what TRL does in `_generate_and_score_completions`: weights for vLLM, sampling, rewards, log-probs.
- A turn of `training` goes from there to the last optimizer step before the next generation, whatever
  `gradient_accumulation_steps`, `steps_per_generation` and `num_iterations` are. Both together are an iteration.
- An evaluation is a rollout that counts no iteration. In the middle of a training it needs none of its own: it runs on the devices
  that the training has.
- With a vLLM server (`vllm_mode="server"`) rollouts are on its devices and trainings on the trainer's, and new weights need both:
  they are sent in a turn of `sync`. An evaluation that is due then needs both too, and is in the same turn.

With several processes the first one asks, and all wait for it. Saving a checkpoint has no turn of its own.
Read with TRL 1.16.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import rollmux_client
import torch
from transformers import TrainerCallback
from trl.trainer import grpo_trainer

__all__ = ["GRPOTrainer", "attach"]

_WAITS = timedelta(days=365)  # for a turn: as long as it takes


def attach(job: str | None = None) -> rollmux_client.Job:
    """As `rollmux_client.attach`, of which there is one for all processes of a launcher as torchrun or accelerate."""
    if os.environ.get("RANK", "0") != "0":
        return rollmux_client.Job(None, job or "")
    return rollmux_client.attach(job)


class GRPOTrainer(grpo_trainer.GRPOTrainer):
    """As `trl.GRPOTrainer`, in turns with other jobs.

    Args:
        job: of `attach`.
    """

    args: Any  # more than transformers says
    model: Any
    vllm_generation: Any

    def __init__(self, *arguments: Any, job: rollmux_client.Job, **options: Any) -> None:
        self._job = job
        self._training: rollmux_client.Phase | None = None  # the turn that it has
        self._evaluates: rollmux_client.Phase | None = None  # the turn of sync in which it does that next
        super().__init__(*arguments, **options)
        several = torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        self._processes = torch.distributed.new_group(backend="gloo", timeout=_WAITS) if several else None
        self.add_callback(_Ends(self))

    def train(self, *arguments: Any, **options: Any) -> Any:
        """As in TRL.

        Raises:
            Interrupted: the service wants the job to stop; there is a checkpoint. Or to move, to go on from the last one.
        """
        outcome = super().train(*arguments, **options)
        if self._agreed(self._job.stopping and self.state.global_step < self.state.max_steps):
            raise rollmux_client.Interrupted("stop")
        return outcome

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """As in TRL, in a turn of its own."""
        if self._training is not None and self._has_server:
            steps = self.args.steps_per_generation * self.num_iterations // self.args.gradient_accumulation_steps
            raise ValueError(f"evaluations with a vLLM server are where a training ends: eval_steps is a multiple of {steps}")
        turn, self._evaluates = self._evaluates, None
        if turn is None and self._training is None:
            turn = self._begin("rollout", extra=True)
        outcome = super().evaluate(*arguments, **options)
        if turn is not None:
            self._end(turn)
        return outcome

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if not self.model.training:  # of an evaluation
            return super()._generate_and_score_completions(inputs)
        self._end_training()  # where it generates in the middle of an optimizer step
        turn = self._begin("rollout")
        outputs = super()._generate_and_score_completions(inputs)
        if rewards := self._metrics["train"]["reward"]:
            turn.report(reward=float(rewards[-1]))
        self._end(turn)
        self._training = self._begin("training")
        return outputs

    @property
    def _has_server(self) -> bool:
        return bool(self.use_vllm) and self.args.vllm_mode == "server"

    @property
    def _generates_next(self) -> bool:
        return bool(self._step % (self.args.steps_per_generation * self.num_iterations) == 0)

    def _end_step(self, control: Any) -> None:
        """After an optimizer step."""
        if self._agreed(self._job.stopping):
            control.should_save = control.should_training_stop = True
        if self._generates_next:
            self._end_training(syncs=control.should_evaluate or not control.should_training_stop, evaluates=control.should_evaluate)

    def _end_training(self, syncs: bool = True, evaluates: bool = False) -> None:
        """End the turn of training, if it has one, and with it the iteration.

        Args:
            syncs: a server needs the new weights. evaluates: it is asked for an evaluation next.
        """
        turn, self._training = self._training, None
        if turn is None:
            return
        self._end(turn)
        if self._has_server and syncs:
            turn = self._begin("sync")
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
            if evaluates:
                self._evaluates = turn
            else:
                self._end(turn)
        self._job.iteration += 1

    def _begin(self, phase: str, extra: bool = False) -> rollmux_client.Phase:
        turn = self._job.phase(phase, extra=extra)
        self._job.acquire(turn)
        self._wait_for_all()
        return turn

    def _end(self, turn: rollmux_client.Phase) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            turn.device_gb = torch.cuda.memory_reserved() / 1e9
        self._wait_for_all()
        self._job.release(turn)

    def _wait_for_all(self) -> None:
        if self._processes is not None:
            torch.distributed.barrier(self._processes)

    def _agreed(self, flag: bool) -> bool:
        """What the first process says."""
        if self._processes is None:
            return flag
        value = torch.tensor([int(flag)])
        torch.distributed.broadcast(value, 0, self._processes)
        return bool(value.item())


class _Ends(TrainerCallback):
    """Tells the trainer where its steps end."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._trainer._end_step(control)  # noqa: SLF001 (one class with two bases would be copied by transformers)

    def on_train_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._trainer._end_training(syncs=False)  # noqa: SLF001
