"""A job around an outside trainer: TRL's GRPO, whose own loop runs in a thread and stops where a phase ends.

    rollmux run examples/trl_job.yaml

TRL keeps its loop to itself, so the cut between rollout and training is made with what TRL offers to everybody: the reward function
is the last thing that happens in sampling, and a callback is told when an optimizer step is done.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rollmux

if TYPE_CHECKING:
    import torch

ADAM, RATE = "adam.safetensors", "rate.json"  # files of a checkpoint


class TrlGrpo:
    """TRL's GRPO trainer as a job of two phases; the whole of it lives in this one process.

    Args:
        prompts: prompts of an iteration. group_size: responses to each. max_tokens: longest response. seed: of model and sampling.
    """

    def __init__(self, prompts: int = 8, group_size: int = 8, max_tokens: int = 32, seed: int = 0) -> None:
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        from runtime.jobs.grpo_spec import ModelSpec
        from runtime.jobs.models import load_tokenizer, model_directory

        job = self

        class StopAfterStep(TrainerCallback):
            def on_train_begin(self, *arguments: Any, **options: Any) -> None:
                job._take_up()

            def on_step_begin(self, *arguments: Any, **options: Any) -> None:
                job._undo_draws()

            def on_step_end(self, *arguments: Any, **options: Any) -> None:
                job._pause()

        directory = model_directory(ModelSpec(), seed)
        self._folder = tempfile.TemporaryDirectory(prefix="trl-job-")
        self._trainer = GRPOTrainer(
            model=str(directory),
            processing_class=load_tokenizer(directory),
            reward_funcs=self._reward,
            train_dataset=Dataset.from_list([{"prompt": str(digit % 4)} for digit in range(64)]),
            callbacks=[StopAfterStep()],
            args=GRPOConfig(
                output_dir=self._folder.name,
                per_device_train_batch_size=prompts * group_size,
                num_generations=group_size,
                max_completion_length=max_tokens,
                generation_kwargs={"min_new_tokens": max_tokens} if rollmux.runtime_hook.worst_case else None,
                learning_rate=2e-3,
                max_steps=1_000_000,  # the job file says how many iterations there are
                seed=seed,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
        )
        self._checkpoint: Path | None = None  # to go on from
        self._random: torch.Tensor | None = None  # the generator's state when the loop was begun again
        self._error: BaseException | None = None
        self._closing = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        """TRL samples and rewards."""
        self._go_on()

    @rollmux.phase("train")
    def train(self) -> None:
        """TRL makes its optimizer step. Sampler and trainer are one model: there is nothing to sync."""
        self._go_on()

    def checkpoint(self, folder: Path) -> None:
        """Keep weights, Adam's moments, learning rate and position; the run keeps the states of the random generators."""
        from safetensors.torch import save_file

        trainer = self._trainer
        trainer.model.save_pretrained(folder)
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        moments = trainer.optimizer.state_dict()["state"]
        save_file({f"{place}.{name}": value for place, own in moments.items() for name, value in own.items()}, folder / ADAM)
        rates = {name: value for name, value in trainer.lr_scheduler.state_dict().items() if name != "lr_lambdas"}
        (folder / RATE).write_text(json.dumps(rates))

    def restore(self, folder: Path) -> None:
        """Let TRL's loop, when it begins, go on with the next step and the data that it has not seen."""
        self._checkpoint = folder

    def _take_up(self) -> None:
        """In TRL's loop, which has loaded weights and position: take up the rest."""
        from safetensors.torch import load_file

        if self._checkpoint is None:
            return
        optimizer, moments = self._trainer.optimizer, dict[int, dict[str, Any]]()
        for name, value in load_file(self._checkpoint / ADAM).items():
            place, _, kind = name.partition(".")
            moments.setdefault(int(place), {})[kind] = value
        schedule, groups = self._trainer.lr_scheduler, optimizer.state_dict()["param_groups"]
        schedule.load_state_dict({**schedule.state_dict(), **json.loads((self._checkpoint / RATE).read_text())})
        for group, rate in zip(groups, schedule.get_last_lr(), strict=True):
            group["lr"] = rate
        optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def _undo_draws(self) -> None:
        """Before the first step after a restart: what the start of the loop has drawn counts for nothing."""
        import torch

        if self._random is not None:
            torch.set_rng_state(self._random)
            self._random = None

    def close(self) -> None:
        """Let TRL's loop end."""
        self._closing = True
        self._go.release()
        self._thread.join()
        self._folder.cleanup()

    def _reward(self, prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
        """The share of the first 32 characters that repeat the prompt's digit."""
        rewards = [text[:32].count(prompt) / 32 for prompt, text in zip(prompts, completions, strict=True)]
        rollmux.runtime_hook.report(reward=sum(rewards) / len(rewards))
        self._pause()
        return rewards

    def _loop(self) -> None:
        import torch

        self._go.acquire()
        try:
            if not self._closing:
                self._random = torch.get_rng_state() if self._checkpoint else None
                self._trainer.train(resume_from_checkpoint=str(self._checkpoint) if self._checkpoint else None)
        except SystemExit:
            pass
        except BaseException as error:
            self._error = error
        self._stopped.release()

    def _go_on(self) -> None:
        """In a phase: let TRL's loop run to where the phase ends."""
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error

    def _pause(self) -> None:
        """In TRL's loop: a phase ends here; wait for the next one."""
        self._stopped.release()
        self._go.acquire()
        if self._closing:
            raise SystemExit
