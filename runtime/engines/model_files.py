"""Properties of a Hugging Face directory that an engine needs before loading: shapes of weights, end tokens, longest context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, read_json
from rollmux_env.validation_errors import describe
from runtime.engines.pretrained import has_tokenizer, load_config, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

OUTPUT = "lm_head.weight"  # name of the output matrix of every causal language model in transformers
_INPUT = "embed_tokens.weight"  # end of the name of the input embedding
_GENERATION = "generation_config.json"
_NESTED = ("text_config", "llm_config", "language_config")  # keys of multimodal models
_BLOCK = 1 << 24  # number of values of a weight that are compared at once


class HasShape(Protocol):
    """A tensor, or an object that reads one on demand."""

    @property
    def shape(self) -> Sequence[int]:
        """Shape of the tensor."""


_Shaped = TypeVar("_Shaped", bound=HasShape)


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        directory: Directory with config.json and safetensors.
        shapes: Shape of every tensor by its Hugging Face name, without the output matrix if it is tied.
        embedding: Name of the input embedding, whose shape is (vocabulary, hidden).
        tied: Whether the output matrix is the input embedding.
        stated_ends: Tokens that end a response according to config.json and generation_config.json.
        longest: Largest number of tokens that the model can attend to.
        cached: Number of values in the KV cache for one token.
        head: Size of an attention head.
        kv_heads: Number of heads of keys and values.
    """

    directory: Path
    shapes: Mapping[str, tuple[int, ...]]
    embedding: str
    tied: bool
    stated_ends: frozenset[int]
    longest: int
    cached: int
    head: int
    kv_heads: int

    def cached_on_each(self, devices: int) -> int:
        """Return the number of values in the KV cache for one token on each of the devices that hold the model together.

        A head is on one device, or with more devices than heads on several of them.
        """
        return self.cached // max(1, min(devices, self.kv_heads))

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a response, according to the configuration, the generation configuration or the tokenizer.

        Raises:
            InputError: The tokenizer cannot be loaded, or there is no such token.
        """
        end = load_tokenizer(self.directory).eos_token_id if has_tokenizer(self.directory) else None
        stated = self.stated_ends | ({end} if isinstance(end, int) else set())
        ends = sorted(end for end in stated if end < self.vocabulary)  # a tokenizer class may add tokens without a logit
        if not ends:
            raise InputError(
                f"{self.directory}: no token of the model ends a response: config, generation config and tokenizer state none"
            )
        return tuple(ends)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.shapes[self.embedding][0]

    @property
    def parameters(self) -> int:
        """Number of all parameters, with a tied output matrix counted once."""
        return sum(prod(shape) for shape in self.shapes.values())

    def checked(self, weights: Mapping[str, _Shaped]) -> dict[str, _Shaped]:
        """Return the weights under exactly the names of `shapes`.

        Raises:
            InputError: A name is missing or unknown, or a shape differs.
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
        """Return the data type of each weight on disk in safetensors' notation, such as `BF16`. No tensor is read."""
        return {name: file.get_slice(name).get_dtype() for name, file in self._stored()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights on disk one at a time, on the CPU."""
        return ((name, file.get_tensor(name)) for name, file in self._stored())

    def _stored(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each weight on disk with the open file that contains it."""
        from safetensors import safe_open

        for path in _weight_files(self.directory):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if name in self.shapes:
                        yield name, file


def read_model_files(directory: Path) -> ModelFiles:
    """Read the properties of a model's directory without loading a tensor.

    Raises:
        InputError: config.json or the weights are missing or not valid.
    """
    from safetensors import SafetensorError, safe_open

    config = _read_json(directory / "config.json")
    for nested in _NESTED:
        if nested in config:
            problem = "a model whose configuration is nested is not supported, only a causal language model by itself"
            raise InputError(f"{directory / 'config.json'}: {nested}: {problem}")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(directory):
        check_regular(path)
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
    embedding = next((name for name in shapes if name.endswith(_INPUT)), None)
    if embedding is None:
        raise InputError(f"{directory}: no weight is called ...{_INPUT}; only causal language models are supported")
    tied = _is_tied(directory, config, shapes, embedding)
    if tied:
        shapes.pop(OUTPUT, None)
    ends = _ends(directory / "config.json", config)
    if (directory / _GENERATION).exists():
        ends |= _ends(directory / _GENERATION, _read_json(directory / _GENERATION))
    try:
        heads, longest = config["num_attention_heads"], config["max_position_embeddings"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads", heads)
        cached = 2 * config["num_hidden_layers"] * kv_heads * head
        counts = [int(number) for number in (longest, cached, head, kv_heads)]
    except KeyError as error:
        raise InputError(f"{directory / 'config.json'}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{directory / 'config.json'}: layers, heads, sizes and positions must be counts") from None
    files = ModelFiles(directory, shapes, embedding, tied, ends, *counts)
    if not ends:
        files.end_ids  # noqa: B018 - raises if the tokenizer has no end token either
    return files


def _is_tied(directory: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], embedding: str) -> bool:
    """Return whether the output matrix is the input embedding.

    With contradictory files, trainer and engines might decide differently, and the trained model would differ from the sampled one.

    Args:
        directory: Hugging Face directory of the model.
        config: Content of its config.json.
        shapes: Shape of each weight in its files.
        embedding: Name of the input embedding.

    Raises:
        InputError: Configuration and weights contradict each other.
    """
    tied = config.get("tie_word_embeddings")
    if tied is None:  # the default depends on the class of the model
        tied = load_config(directory).tie_word_embeddings
    where = f"{directory / 'config.json'}: tie_word_embeddings is {'true' if tied else 'false'}"
    if not tied and OUTPUT not in shapes:
        raise InputError(f"{where}, but the weights hold no {OUTPUT}")
    if tied and OUTPUT in shapes and not _are_equal(directory, OUTPUT, embedding):
        raise InputError(f"{where}, but {OUTPUT} differs from {embedding} in the weights")
    return bool(tied)


def _are_equal(directory: Path, *names: str) -> bool:
    """Return whether two weights on disk are equal. Only a block of rows of each is in memory at a time."""
    import torch
    from safetensors import safe_open

    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in _weight_files(directory)]
        first, second = (next(file.get_slice(name) for file in files if name in file.keys()) for name in names)  # noqa: SIM118
        shape = first.get_shape()
        if shape != second.get_shape() or first.get_dtype() != second.get_dtype():
            return False
        rows = max(1, _BLOCK // max(1, prod(shape[1:])))
        return all(torch.equal(first[k : k + rows], second[k : k + rows]) for k in range(0, shape[0], rows))


def _ends(path: Path, content: Mapping[str, Any]) -> frozenset[int]:
    """Return the end tokens that a configuration states.

    Raises:
        InputError: They are not token ids.
    """
    stated = content.get("eos_token_id")
    ends = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise InputError(f"{path}: eos_token_id must be a token id or a list of them, not {describe(stated)}")
    return frozenset(ends)


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
