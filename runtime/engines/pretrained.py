"""Loading of a Hugging Face directory with transformers.

Nothing is downloaded, weights come from safetensors, and no code of the directory is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line

if TYPE_CHECKING:
    from torch import dtype
    from transformers import PreTrainedTokenizerFast

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
"""Patterns of the files that a tokenizer may be in. One of them is enough."""


def load_config(directory: Path) -> Any:
    """Return the configuration of a model, with the defaults of its class.

    Raises:
        InputError: transformers has no such model, or would have to run code of the directory.
    """
    from transformers import AutoConfig

    with _refusing(directory):
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def has_tokenizer(directory: Path) -> bool:
    """Return whether a folder contains the files of a tokenizer."""
    return any(any(directory.glob(name)) for name in TOKENIZERS)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a model's directory.

    Raises:
        InputError: transformers cannot load it, or would have to run code of the directory.
    """
    from transformers import AutoTokenizer

    with _refusing(directory):
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    return cast("PreTrainedTokenizerFast", tokenizer)


def load_model(directory: Path, dtype: dtype, config: Any = None) -> Any:
    """Return a causal language model with every weight from the directory's files.

    Args:
        directory: Hugging Face directory of the model.
        dtype: Data type of the loaded weights.
        config: Configuration to use, or None for that of the directory.

    Raises:
        InputError: transformers cannot load it, would have to run code of the directory, or would initialise a weight at random
            because the files lack it.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = config or load_config(directory)
    with _refusing(directory):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise InputError(f"{one_line(str(directory), 4096)}: holds no {one_line(missing[0])}, a weight of {type(model).__name__}")
    return model


@contextmanager
def _refusing(directory: Path) -> Iterator[None]:
    """Turn errors of transformers about a directory into an InputError of one line."""
    try:
        yield
    except (ValueError, OSError, KeyError, ImportError) as error:
        problem = one_line(" ".join(str(error).split()), 300)
        raise InputError(f"{one_line(str(directory), 4096)}: transformers cannot load it: {problem}") from None
