"""What an engine must know of a Hugging Face directory before it loads it: shapes of weights, end tokens, longest context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, read_json

if TYPE_CHECKING:
    from torch import Tensor

OUTPUT = "lm_head.weight"  # the output matrix of every causal language model in transformers
_INPUT = "embed_tokens.weight"  # how the name of the input embedding ends


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        directory: config.json and safetensors are in it.
        shapes: of every tensor, by its Hugging Face name; without the output matrix where it is tied.
        embedding: name of the input embedding, of shape (vocabulary, hidden).
        tied: the output matrix is the input embedding.
        end_ids: tokens that end a response.
        longest: tokens that the model can attend to.
        cached: numbers that the KV cache holds a token. head: size of an attention head.
    """

    directory: Path
    shapes: Mapping[str, tuple[int, ...]]
    embedding: str
    tied: bool
    end_ids: tuple[int, ...]
    longest: int
    cached: int
    head: int

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.shapes[self.embedding][0]

    @property
    def parameters(self) -> int:
        """Numbers that the weights are; a tied output matrix counts once."""
        return sum(prod(shape) for shape in self.shapes.values())

    def checked(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights under exactly the names of `shapes`.

        Raises:
            InputError: a name is missing or unknown, or a shape differs.
        """
        stored = {name: tensor for name, tensor in weights.items() if not (self.tied and name == OUTPUT)}
        for name, shape in self.shapes.items():
            if name not in stored:
                raise InputError(f"{name}: missing from the new weights")
            if tuple(stored[name].shape) != shape:
                raise InputError(f"{name}: the new weights have shape {tuple(stored[name].shape)}, the model has {shape}")
        if len(stored) > len(self.shapes):
            raise InputError(f"{min(stored.keys() - self.shapes.keys())}: not a weight of the model")
        return stored

    def types(self) -> dict[str, str]:
        """The type of numbers of each weight on disk, as safetensors calls it (`BF16`); no tensor is read."""
        return {name: file.get_slice(name).get_dtype() for name, file in self._stored()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight on disk, on the CPU, one at a time."""
        return ((name, file.get_tensor(name)) for name, file in self._stored())

    def _stored(self) -> Iterator[tuple[str, Any]]:
        """The name of each weight on disk, and the open file that it is in."""
        from safetensors import safe_open

        for path in _weight_files(self.directory):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    if name in self.shapes:
                        yield name, file


def read_model_files(directory: Path) -> ModelFiles:
    """Read what `ModelFiles` holds; no tensor is loaded.

    Raises:
        InputError: config.json or the weights are missing or no such files.
    """
    from safetensors import SafetensorError, safe_open

    config = _read_json(directory / "config.json")
    generation = _read_json(directory / "generation_config.json") if (directory / "generation_config.json").exists() else {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(directory):
        check_regular(path)
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
    tied = bool(config.get("tie_word_embeddings", False)) or OUTPUT not in shapes  # configs leave out what is a class's default
    if tied:
        shapes.pop(OUTPUT, None)
    embedding = next((name for name in shapes if name.endswith(_INPUT)), None)
    if embedding is None:
        raise InputError(f"{directory}: no weight is called ...{_INPUT}; only causal language models are supported")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    end_ids = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    try:
        heads, longest = config["num_attention_heads"], config["max_position_embeddings"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        cached = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head
        counts = [int(number) for number in (longest, cached, head)]
    except KeyError as error:
        raise InputError(f"{directory / 'config.json'}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{directory / 'config.json'}: layers, heads, sizes and positions must be counts") from None
    return ModelFiles(directory, shapes, embedding, tied, end_ids, *counts)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise InputError(f"{index}: no weight_map in it")
        return [directory / name for name in sorted(set(names.values()))]
    single = directory / "model.safetensors"
    if not single.exists():
        raise InputError(f"{directory}: no model.safetensors in it")
    return [single]


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content
