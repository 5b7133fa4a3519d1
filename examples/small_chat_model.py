"""A random Qwen2 with a chat template, and problems that it can learn: `python examples/small_chat_model.py`.

For trying `gsm8k.yaml` on a CPU. In gsm8k/ beside this script, `model` is a Hugging Face folder like that of
Qwen2.5-0.5B-Instruct, with 0.1 million random weights: its tokens are bytes and the three special ones of Qwen's chat template.
problems.jsonl has lines in GSM8K's format.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (  # that of Qwen2-Instruct
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve")
THINGS = ("apples", "books", "coins", "pens")


def make_model(folder: Path, seed: int = 0) -> None:
    """Write config, weights, tokenizer and chat template into a new folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    end = SPECIAL.index("<|im_end|>")
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + 256,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 numbers each, as vLLM on CPUs wants them at least
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=end,
        initializer_range=0.05,
        dtype="float32",
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def make_tokenizer() -> Any:
    """A token a byte, in the byte-level form of Qwen's own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the other bytes are written as characters from 256 on
    others = iter(range(256, 512))
    symbols = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate((*SPECIAL, *symbols))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def problems() -> list[dict[str, str]]:
    """Sums of 1 and 2, in GSM8K's format."""
    lines = []
    for a in (1, 2):
        for b in (1, 2):
            for name in NAMES:
                for thing in THINGS:
                    question = f"{name} has {a} {thing} and gets {b}. How many {thing}?"
                    lines.append({"question": question, "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"})
    return lines


def main() -> None:
    """Write both."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "gsm8k"
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    (folder / "problems.jsonl").write_text("".join(json.dumps(line) + "\n" for line in problems()))
    print(f"{folder / 'model'}\n{folder / 'problems.jsonl'}: {len(problems())} lines")


if __name__ == "__main__":
    main()
