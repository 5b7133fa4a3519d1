"""GRPO in plain torch as a job under its own launcher, whose state leaves the device between turns.

    rollmux serve rollmux-service --no-ray
    rollmux exec examples/http_grpo.yaml --job first -- python examples/http_grpo.py --out first
    rollmux exec examples/http_grpo.yaml --job second -- python examples/http_grpo.py --out second

It learns to sample even tokens, on a GPU if there is one: on a machine with several, the service needs
`--cluster examples/one_machine.yaml`, since both phases are on the same devices. Without a service it runs as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import rollmux_client
import rollmux_devices
import torch
from rollmux_offload import Offloader, state_of
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

PROMPTS, GROUP, PROMPT, RESPONSE = 4, 8, 4, 16
TINY = Qwen2Config(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
)


def sample(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample groups of responses to random prompts: the tokens, and the reward of each response."""
    prompts = torch.randint(64, (PROMPTS, PROMPT), device=model.device).repeat_interleave(GROUP, 0)
    length = {"max_new_tokens": RESPONSE, "min_new_tokens": RESPONSE}
    tokens = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, pad_token_id=0, **length)
    return tokens, (tokens[:, PROMPT:] % 2 == 0).float().mean(1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, rewards: torch.Tensor) -> None:
    """Make one on-policy step, where the ratio of GRPO is 1 and its gradient that of the log-probabilities."""
    groups = rewards.view(PROMPTS, GROUP)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    logprobs = model(tokens).logits[:, PROMPT - 1 : -1].float().log_softmax(-1)
    (-advantages * logprobs.gather(2, tokens[:, PROMPT:, None])[..., 0]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("http-grpo"), help="folder of the checkpoint, from which it continues")
    parser.add_argument("--iterations", type=int, default=20, help="as many as the job file says")
    parser.add_argument("--model", help="folder of a Hugging Face model; without it, a tiny random one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint, done = options.out / "checkpoint.pt", 0
    with rollmux_client.attach() as job:
        with job.init():
            model = Qwen2ForCausalLM(TINY)
            if options.model:
                model = AutoModelForCausalLM.from_pretrained(options.model, trust_remote_code=False, use_safetensors=True)
            model.to("cuda" if torch.cuda.is_available() else "cpu")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5 if options.model else 1e-2, weight_decay=0.0)
            if checkpoint.exists():
                done, weights, moments = torch.load(checkpoint, map_location=model.device, weights_only=True)
                model.load_state_dict(weights)
                optimizer.load_state_dict(moments)
            offloader = Offloader(lambda: state_of(model, optimizer))
            offloader.offload()
        job.continue_from(done)
        for k in job.iterations(options.iterations):
            with job.phase("rollout") as phase:
                offloader.restore()
                tokens, rewards = sample(model)
                tokens, rewards = tokens.cpu(), rewards.cpu()
                phase.report(reward=rewards.mean().item())
                offloader.offload()
                rollmux_devices.report(job, phase)
            with job.phase("training") as phase:
                offloader.restore()
                train(model, optimizer, tokens.to(model.device), rewards.to(model.device))
                torch.save((k + 1, model.state_dict(), optimizer.state_dict()), checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
                offloader.offload()
                rollmux_devices.report(job, phase)
            print(f"iteration {k}: reward {rewards.mean().item():.2f}", flush=True)


if __name__ == "__main__":
    main()
