"""Language models of jobs: `tiny`, a Qwen2 that is generated, or a Hugging Face directory.

`tiny` reads and writes bytes. Its initial weights are a table of which character follows which. After a digit or a sign, every
digit and sign is equally likely, and the end comes after 64 of them on average. The small letters are of five kinds (a-e, f-j, k-o,
p-t, u-y), each announced by a capital, A to E: a letter is followed by others of its kind, for 8, 24, 72, 216 or 648 characters on
average. A mixture of prompts that end in these capitals therefore has heavy-tailed response lengths.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, read_json
from rollmux_env.validation_errors import one_line
from runtime.engines.pretrained import TOKENIZERS
from runtime.engines.pretrained import load_tokenizer as load_tokenizer  # users' scripts import it from here
from runtime.jobs.grpo_spec import TINY, ModelSpec
from runtime.jobs.named import located
from runtime.jobs.tasks import TaskExample

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

_FORMAT = 1  # format of tiny models; it is part of their folders' names
_SPECIAL = ("<pad>", "<end>", "<unk>")  # the first tokens; the bytes follow
KINDS = {"A": "abcde", "B": "fghij", "C": "klmno", "D": "pqrst", "E": "uvwxy"}
"""Letters of each kind, by the capital that announces it."""
LENGTHS = {"A": 8, "B": 24, "C": 72, "D": 216, "E": 648}
"""Mean characters of an untrained model's response, by the capital at the end of the prompt."""
_SIGNS = "0123456789 \n.,:;?!+-*/=()<>'\"#"
_SIGNS_LENGTH = 64
TINY_CONTEXT = 4096
"""Context length of `tiny`, in tokens."""
VOCABULARY_SIZE = len(_SPECIAL) + 256
END = 1
"""Token that ends a response."""
_INITIAL_STD = 0.02
_EMBEDDING_STD = 1.0  # large compared with what the untrained layers add, so that they do not blur the table
_RARE = 1e-5  # probability of all other successors


def cache_folder(name: str) -> Path:
    """Return a folder in the user's cache: ROLLMUX_CACHE, else $XDG_CACHE_HOME/rollmux, else ~/.cache/rollmux.

    Args:
        name: Name of the folder.

    Raises:
        InputError: If it cannot be made or written; one line.
    """
    own = os.environ.get("ROLLMUX_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "rollmux"
    if base.parts[0] == "~":
        raise InputError("no home folder is known; ROLLMUX_CACHE names a folder for what is made once and used again")
    folder = base / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{one_line(str(folder), 4096)}: {error.strerror} (ROLLMUX_CACHE names another folder)") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{one_line(str(folder), 4096)}: cannot be written (ROLLMUX_CACHE names another folder)")
    return folder


def model_directory(model: ModelSpec, seed: int, folder: Path = Path()) -> Path:
    """Return the Hugging Face directory of a model; `tiny` is generated in the cache if it is not there yet.

    Args:
        model: The model.
        seed: Seed of the weights of `tiny`.
        folder: Folder in which a relative directory is looked for.

    Raises:
        InputError: If the directory is missing or incomplete; one line.
    """
    if model.name != TINY:
        return local_directory(located(folder, model.name))
    library = version("transformers").partition(".")[0]  # an older one cannot read a newer one's tokenizer
    recipe = json.dumps([_FORMAT, model.hidden_size, model.layers, seed, library])
    name = f"tiny-{model.hidden_size}x{model.layers}-seed{seed}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"
    target = cache_folder("models") / name
    if not target.is_dir():
        part = target.with_name(f".{name}-{secrets.token_hex(4)}")
        try:
            _make_tiny(part, model, seed)
            try:
                part.rename(target)
            except OSError:
                if not target.is_dir():  # otherwise another process has made it, with the same bytes
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def local_directory(path: Path) -> Path:
    """Return a Hugging Face directory, and check that it has config.json, a tokenizer, and weights as safetensors.

    Raises:
        InputError: If one is missing; one line.
    """
    name = one_line(str(path), 4096)
    if not path.is_dir():
        raise InputError(f"{name}: there is no such folder; a model is `tiny` or a Hugging Face directory on this machine")
    patterns = {"config.json": ("config.json",), "weights as *.safetensors": ("*.safetensors",), "a tokenizer": TOKENIZERS}
    for what, names in patterns.items():
        if not any(any(path.glob(name)) for name in names):
            raise InputError(f"{name}: holds no {what.removeprefix('a ')}; a Hugging Face directory of a model has {what}")
    for file in (*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("tokenizer*")):
        check_regular(file)
    return path.resolve()


def prompt_tokens(tokenizer: Any, example: TaskExample) -> tuple[int, ...]:
    """Return the token ids of an example's prompt, as they are passed to an engine.

    Args:
        tokenizer: Tokenizer of transformers.
        example: The example.

    Raises:
        InputError: If the chat template refuses the messages; one line.
    """
    if not example.messages:
        return tuple(tokenizer(example.prompt)["input_ids"])
    try:
        text = tokenizer.apply_chat_template([*example.messages], add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program, which may raise anything
        raise InputError(f"the chat template of the model fails: {one_line(f'{type(error).__name__}: {error}')}") from None
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has added the special tokens


def has_chat_template(directory: Path) -> bool:
    """Return whether a model's folder has a chat template.

    Raises:
        InputError: If the tokenizer's configuration cannot be read; one line.
    """
    if (directory / "chat_template.jinja").is_file():
        return True
    config = directory / "tokenizer_config.json"
    content = read_json(config) if config.is_file() else {}
    return isinstance(content, dict) and bool(content.get("chat_template"))


def tiny_config(model: ModelSpec) -> dict[str, Any]:
    """Return keyword arguments for the tiny model's `Qwen2Config`."""
    heads = model.hidden_size // 32
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": model.hidden_size,
        "intermediate_size": 4 * model.hidden_size,
        "num_hidden_layers": model.layers,
        "max_window_layers": model.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "max_position_embeddings": TINY_CONTEXT,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": END,
        "initializer_range": _INITIAL_STD,
        "dtype": "float32",
    }


def _make_tiny(path: Path, model: ModelSpec, seed: int) -> None:
    """Write config, weights and tokenizer into a new folder."""
    import torch
    from safetensors.torch import save
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rollmux_env.files import write_whole

    path.mkdir()
    config = Qwen2Config(**tiny_config(model))
    config.architectures = ["Qwen2ForCausalLM"]
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Qwen2ForCausalLM(config).state_dict().items()}  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in sorted(shapes.items()):  # drawn here, so that they do not depend on a library's version
        if len(shape) == 1:
            weights[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        else:
            std = _EMBEDDING_STD if "embed_tokens" in name else _INITIAL_STD
            weights[name] = std * torch.randn(shape, generator=generator)
    weights["lm_head.weight"] = _table_head(weights["model.embed_tokens.weight"])
    config.save_pretrained(path)
    write_whole(path / "model.safetensors", save(weights, metadata={"format": "pt"}))
    _make_tokenizer().save_pretrained(path)
    for name in os.listdir(path):
        (path / name).chmod(0o444)


def _table_head(embeddings: Tensor) -> Tensor:
    """Return an output matrix (V, H) that maps the normalised embedding of a character to the logits of its successors."""
    import torch

    signs = [token_of(character) for character in _SIGNS]
    chances = torch.full((VOCABULARY_SIZE, VOCABULARY_SIZE), _RARE)  # row: character, column: its successor
    chances[:, signs] = (1 - 1 / _SIGNS_LENGTH) / len(signs)
    chances[:, END] = 1 / _SIGNS_LENGTH
    for capital, letters in KINDS.items():
        own = [token_of(letter) for letter in letters]
        for row in (token_of(capital), *own):
            ends = 1 / LENGTHS[capital] if row in own else _RARE
            chances[row] = _RARE
            chances[row, own] = (1 - ends) / len(own)
            chances[row, END] = ends
    logits = chances.log() - chances.log().mean(1, keepdim=True)
    rows = [*signs, *map(token_of, "".join(KINDS)), *map(token_of, "".join(KINDS.values()))]
    hidden = embeddings[rows] / embeddings[rows].square().mean(1, keepdim=True).sqrt()
    head: Tensor = (torch.linalg.pinv(hidden.double()) @ logits[rows].double()).T.float()
    return head.contiguous()


def token_of(character: str) -> int:
    """Return the tiny model's token of an ASCII character."""
    return len(_SPECIAL) + ord(character)


def _make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per byte, in Qwen2's byte-level form, which transformers assumes for a model of this type."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the other bytes are written as characters from 256 on
    others = iter(range(256, 512))
    symbols = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    vocabulary = {token: k for k, token in enumerate((*_SPECIAL, *symbols))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        unk_token=_SPECIAL[2],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
