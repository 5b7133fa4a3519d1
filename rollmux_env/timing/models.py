"""Sizes of language models, by a size name or from the `config.json` of a Hugging Face folder.

A size name means a published model: 0.5B to 32B are Qwen2.5, except 4B and 8B, which are Qwen3; 70B is Llama 3. In a mixture of
experts a token is multiplied only with the experts it is routed to, but memory holds all experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Count
from rollmux_env.files import read_json
from rollmux_env.published import source
from rollmux_env.validation_errors import not_one_of, one_line


@dataclass(frozen=True)
class ModelShape(Checked):
    """A decoder-only transformer with grouped-query attention and a gated feed-forward network.

    Attributes:
        hidden: Hidden size.
        layers: Number of layers.
        heads: Number of attention heads.
        kv_heads: Number of heads of keys and values.
        head: Size of one head.
        intermediate: Width of the feed-forward network, or of one expert.
        vocabulary: Number of tokens in the vocabulary.
        tied: Whether the output matrix is the input embedding.
        experts: Number of feed-forward networks (experts) per layer.
        active: Number of experts that process each token, shared experts included.
    """

    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head: Count
    intermediate: Count
    vocabulary: Count
    tied: bool
    experts: Count = 1
    active: Count = 1

    @property
    def matrix_parameters(self) -> int:
        """Number of parameters that every token is multiplied with.

        They are the attention and feed-forward weights of each layer and the output matrix.
        """
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + self.active * self._expert) + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of weights without norms, biases and routers (below 0.1%)."""
        others = self.layers * (self.experts - self.active) * self._expert
        return self.matrix_parameters + others + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def expert_parameters(self) -> int:
        """Number of weights of all experts; 0 for a dense model, which reads all its weights in every step."""
        return self.layers * self.experts * self._expert if self.experts > 1 else 0

    @property
    def _expert(self) -> int:
        return 3 * self.hidden * self.intermediate

    @property
    def cached(self) -> int:
        """Number of values in the KV cache per token."""
        return 2 * self.layers * self.kv_heads * self.head

    @property
    def attended(self) -> int:
        """Number of multiplications between a token and one token of its context, for scores and values together."""
        return 2 * self.layers * self.heads * self.head


SHAPES = dict(source("models").table("sizes", ModelShape))
"""Dense models, by size name."""
ALL_SHAPES = SHAPES | dict(source("models").table("others", ModelShape))
"""All models, including mixtures of experts and models that occur only in published tables."""
MIXTURES = tuple(name for name, shape in ALL_SHAPES.items() if shape.experts > 1)


def model_shape(name: str, folder: Path = Path()) -> ModelShape:
    """Return the sizes of a model's parts.

    Args:
        name: A key of `ALL_SHAPES`, or the path of a `config.json` or of the directory that holds it.
        folder: Directory to which a relative path is relative.

    Raises:
        InputError: If the name is neither, or the file does not describe a supported model.
    """
    if name in ALL_SHAPES:
        return ALL_SHAPES[name]
    path = folder / name
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" or not path.is_file():
        raise InputError(not_one_of(name, ALL_SHAPES, ", or a Hugging Face model's config.json"))
    return read_shape(path)


def read_shape(path: Path) -> ModelShape:
    """Read the sizes from a Hugging Face `config.json`.

    Raises:
        InputError: If the file cannot be read, a size is missing or is not a count, or the model has experts.
    """
    return shape_of(read_json(path), one_line(str(path), 4096))


def shape_of(config: Any, name: str) -> ModelShape:
    """Return the sizes that a Hugging Face configuration gives.

    Args:
        config: Parsed JSON of the configuration.
        name: Origin of the configuration, for error messages.

    Raises:
        InputError: If a size is missing or is not a count, or the model has experts.
    """
    if not isinstance(config, dict):
        raise InputError(f"{name}: is not a JSON object")
    if any("expert" in key for key in config):
        raise InputError(f"{name}: is a mixture of experts; of these the names {', '.join(MIXTURES)} are known")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise InputError(f"{name}: {error.args[0]} is missing") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{name}: layers, heads and sizes must be counts") from None
