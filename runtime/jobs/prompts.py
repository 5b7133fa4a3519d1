"""The tokens of a prompt: those of its text, or what the model's chat template makes of its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.files import read_json
from rollmux_env.validation_errors import one_line
from runtime.jobs.tasks import Example


def prompt_tokens(tokenizer: Any, example: Example) -> tuple[int, ...]:
    """Token ids of an example's prompt, as an engine is given them.

    Args:
        tokenizer: of transformers.

    Raises:
        InputError: the chat template refuses the messages; one line.
    """
    if not example.messages:
        return tuple(tokenizer(example.prompt)["input_ids"])
    try:
        text = tokenizer.apply_chat_template([*example.messages], add_generation_prompt=True, tokenize=False)
    except Exception as error:  # of a template, which is a program
        raise InputError(f"the chat template of the model fails: {one_line(f'{type(error).__name__}: {error}')}") from None
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has written them


def has_chat_template(directory: Path) -> bool:
    """Whether a model's folder has a chat template.

    Raises:
        InputError: its tokenizer's configuration cannot be read; one line.
    """
    if (directory / "chat_template.jinja").is_file():
        return True
    config = directory / "tokenizer_config.json"
    content = read_json(config) if config.is_file() else {}
    return isinstance(content, dict) and bool(content.get("chat_template"))
