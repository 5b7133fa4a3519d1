"""TRL's GRPO trainer as a job under its own launcher, which takes turns with others on the nodes of a service.

    rollmux exec examples/trl_job.yaml --job plain -- python examples/trl_job.py --out plain
    rollmux exec examples/trl_job.yaml --job lora -- python examples/trl_job.py --out lora --lora --evaluate

It runs on a GPU if there is one: on a machine with several, the service needs `--cluster examples/one_machine.yaml`, since both
phases are on the same devices, and torchrun starts a process for each. Without a service it runs as it is: `python
examples/trl_job.py`. Needs trl beside `rollmux[run]`, whose small model and tasks it uses, and peft for `--lora`; a script of your
own needs trl and `rollmux-client`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import rollmux_trl
import torch
from datasets import Dataset
from trl import GRPOConfig

from runtime.engines.pretrained import load_tokenizer
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory


def reward(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """The share of the first 32 characters that repeat the prompt's digit."""
    return [text[:32].count(prompt) / 32 for prompt, text in zip(prompts, completions, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="trl-job", help="folder of checkpoints, from which it continues")
    parser.add_argument("--iterations", type=int, default=10, help="as many as the job file says")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of an iteration, each with 8 responses")
    parser.add_argument("--accumulate", type=int, default=1, help="number of batches whose gradients make one optimizer step")
    parser.add_argument("--epochs", type=int, default=1, help="optimizer steps of an iteration, each with all its samples")
    parser.add_argument("--tokens", type=int, default=32, help="of the longest response")
    parser.add_argument("--lora", action="store_true", help="train an adapter of rank 8")
    parser.add_argument("--evaluate", action="store_true", help="every five iterations")
    options = parser.parse_args()
    model = model_directory(ModelSpec(), seed=0)
    peft = None
    if options.lora:
        from peft import LoraConfig

        peft = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    with rollmux_trl.attach() as job:
        trainer = rollmux_trl.GRPOTrainer(
            job=job,
            model=str(model),
            processing_class=load_tokenizer(model),
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": str(digit % 4)} for digit in range(64)]),
            eval_dataset=Dataset.from_list([{"prompt": str(digit)} for digit in range(4)]),
            peft_config=peft,
            args=GRPOConfig(
                output_dir=options.out,
                per_device_train_batch_size=8 * options.prompts // options.accumulate,
                gradient_accumulation_steps=options.accumulate,
                num_iterations=options.epochs,
                num_generations=8,
                max_completion_length=options.tokens,
                learning_rate=2e-3,
                max_steps=options.iterations * options.epochs,
                eval_strategy="steps" if options.evaluate else "no",
                eval_steps=5 * options.epochs,
                save_steps=1,
                save_total_limit=1,
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                gradient_checkpointing=False,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
            ),
        )
        trainer.train(resume_from_checkpoint=rollmux_trl.last_checkpoint(options.out))


if __name__ == "__main__":
    main()
