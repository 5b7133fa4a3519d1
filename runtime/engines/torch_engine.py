"""The engine without an inference server: a transformers model with a KV cache and one batch.

Prompts are padded on the left, so that all rows end in the same column. A prompt that occurs several times (a group) is prefilled
once. A row leaves the batch with its cache as soon as its response ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rollmux_offload import Offloader, await_device_memory
from rollmux_segment import Footprint
from torch import Tensor

from runtime.engines.interface import Engine, Response, Sampling, SamplingBatch
from runtime.engines.pretrained import load_model
from runtime.memory import memory


class TorchEngine(Engine):
    """Samples with a transformers model, in float32 on a CPU or bfloat16 on the first visible CUDA device.

    Args:
        model_dir: Hugging Face directory of the model.
        max_length: Largest number of tokens of a prompt and its response together.
        threads: Number of threads of this process on a CPU.

    Raises:
        InputError: The directory cannot be used.
    """

    def __init__(self, model_dir: Path, *, max_length: int, threads: int) -> None:
        torch.set_num_threads(threads)
        super().__init__(model_dir, max_length)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = _load_model(model_dir, self._device)
        state = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        self._offloader = Offloader(lambda: state)
        self._released: list[tuple[torch.UntypedStorage, int]] = []  # storages of discarded weights, and their bytes

    def offload(self, drop: bool = False) -> Footprint:
        """Offload to host memory. With `drop`, the weights are freed instead."""
        if drop and not self._offloader.offloaded:
            storages = {one.data_ptr(): one.untyped_storage() for one in self._model.parameters()}.values()  # tied weights once
            self._released = [(storage, storage.nbytes()) for storage in storages]
            for storage, _ in self._released:
                storage.resize_(0)
        return self._offloader.offload()

    def stay(self) -> Footprint:
        """Return the footprint with the weights on the device. The KV cache was freed together with its batch."""
        return self._offloader.stay()

    @property
    def kv_tokens(self) -> int:
        """Number of tokens for which the device has free memory now. The cache grows with the batch."""
        on_gpu = self._device.type == "cuda"
        free_bytes = torch.cuda.mem_get_info(self._device)[0] if on_gpu else memory().free_gb * 1e9
        return max(self._max_length, int(free_bytes // (self._files.cached * (2 if on_gpu else 4))))

    def close(self) -> None:
        """Free the weights."""
        self._offloader.close()
        self._model = None

    @property
    def _is_awake(self) -> bool:
        return self._model is not None and not self._offloader.offloaded and not self._released

    @property
    def _dropped(self) -> bool:
        return bool(self._released)

    @contextmanager
    def _batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, earlier: Sequence[Response | None], streams: Sequence[int]
    ) -> Iterator[SamplingBatch]:
        ends = torch.tensor([] if sampling.ignore_end else self._files.end_ids, dtype=torch.long, device=self._device)
        with torch.inference_mode():
            contexts = [tuple(prompt) + (old.token_ids if old else ()) for prompt, old in zip(prompts, earlier, strict=True)]
            forward = _Forward(self._model, contexts, sampling.max_tokens, self._device)
            yield _Rows(forward, sampling, earlier, streams, ends, self.version)

    @torch.no_grad()
    def _load(self, weights: dict[str, Tensor]) -> None:
        parameters = self._model.state_dict()
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)

    def _come_back(self, weights: dict[str, Tensor] | None) -> Footprint:
        if self._released and self._device.type == "cuda":
            await_device_memory(sum(nbytes for _, nbytes in self._released), "an engine that wakes")
        for storage, nbytes in self._released:
            storage.resize_(nbytes)
        footprint = self._offloader.restore()
        if weights is not None:
            self._load(weights)
        self._released = []  # only now: after an error, what their memory holds is no weights
        return footprint


def numbers(seed: int, stream: int, count: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), one for each token of a response, independent of other responses."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, stream)))).random(count)


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample one token in each row.

    Args:
        logits: Logits, shape (rows, vocabulary).
        uniform: Random numbers in [0, 1) that select the tokens, shape (rows,).
        sampling: Settings of sampling.

    Returns:
        Token ids, and their log-probs under the distribution that they were sampled from, shape (rows,) each.
    """
    if sampling.temperature == 0:
        logprobs = logits.float().log_softmax(-1)
        tokens = logprobs.argmax(-1)
    else:
        logprobs = (logits.float() / sampling.temperature).log_softmax(-1)
        if sampling.top_p < 1:
            logprobs = _nucleus(logprobs, sampling.top_p)
        cumulated = logprobs.double().exp().cumsum(-1)
        tokens = torch.searchsorted(cumulated, (uniform * cumulated[:, -1])[:, None], right=True).squeeze(-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Keep the likeliest tokens that together reach top_p, at least one, and normalise."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(before >= top_p, -torch.inf).log_softmax(-1)
    return torch.empty_like(ordered).scatter_(-1, order, ordered)


class _Forward:
    """The rows in progress, with the model's cache for them."""

    def __init__(self, model: Any, contexts: Sequence[tuple[int, ...]], new: int, device: torch.device) -> None:
        from transformers import DynamicCache

        self._model = model
        once = {context: index for index, context in enumerate(dict.fromkeys(contexts))}
        self._longest = max(map(len, once))
        self._ids = torch.zeros(len(once), self._longest, dtype=torch.long)
        self._mask = torch.ones(len(once), self._longest + new, dtype=torch.long)
        for context, index in once.items():
            self._ids[index, self._longest - len(context) :] = torch.tensor(context)
            self._mask[index, : self._longest - len(context)] = 0
        self._ids, self._mask = self._ids.to(device), self._mask.to(device)
        self._row_of = torch.tensor([once[context] for context in contexts], device=device)
        self._cache = DynamicCache(config=model.config)
        self._column = self._longest

    def read(self) -> Tensor:
        """Prefill the contexts, and return the logits of each row's next token."""
        positions = (self._mask[:, : self._longest].cumsum(-1) - 1).clamp(min=0)
        logits = self._run(self._ids, positions)
        self._select(self._row_of)
        return logits[self._row_of]

    def step(self, tokens: Tensor, over: Tensor) -> Tensor:
        """Append the rows' tokens, remove the rows that are over, and return the logits of the next tokens."""
        if over.any():
            stay = (~over).nonzero().squeeze(-1)
            tokens = tokens[stay]
            self._select(stay)
        self._column += 1
        positions = self._mask[:, : self._column].sum(-1, keepdim=True) - 1
        return self._run(tokens[:, None], positions)

    def _run(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask[:, : self._column],
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _select(self, rows: Tensor) -> None:
        self._mask = self._mask[rows]
        self._cache.batch_select_indices(rows)


class _Rows(SamplingBatch):
    """Tokens sampled for each row, and the rows that are still in progress."""

    def __init__(
        self,
        forward: _Forward,
        sampling: Sampling,
        earlier: Sequence[Response | None],
        streams: Sequence[int],
        ends: Tensor,
        version: int,
    ) -> None:
        super().__init__(earlier, version)
        self._forward, self._sampling, self._ends, device = forward, sampling, ends, ends.device
        uniform = np.stack([numbers(sampling.seed, stream, sampling.max_tokens) for stream in streams])
        self._uniform = torch.from_numpy(uniform).to(device)
        self._tokens = torch.zeros(self._uniform.shape, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(self._uniform.shape, dtype=torch.float32, device=device)
        self._starts = [len(old.token_ids) if old else 0 for old in earlier]
        self._count = torch.tensor(self._starts, device=device)  # tokens of each response so far
        self._finished = torch.zeros(len(earlier), dtype=torch.bool, device=device)
        self._live = torch.arange(len(earlier), device=device)  # rows that the model has, in its order
        self._over = torch.zeros_like(self._finished)  # whether each of these rows has ended or been dropped
        self._last: Tensor | None = None  # last token of each of these rows

    @property
    def running(self) -> int:
        return len(self._over) - int(self._over.sum())

    def step(self) -> tuple[list[Response], int]:
        logits = self._forward.read() if self._last is None else self._forward.step(self._last, self._over)
        live = self._live = self._live[~self._over]
        count = self._count[live]
        tokens, logprobs = draw(logits, self._uniform[live, count], self._sampling)
        self._tokens[live, count], self._logprobs[live, count] = tokens, logprobs
        self._count[live] += 1
        self._over = (self._count[live] == self._sampling.max_tokens) | torch.isin(tokens, self._ends)
        self._finished[live], self._last = self._over, tokens
        return [self.response(row) for row in live[self._over].tolist()], len(tokens)

    def drop(self, rows: Collection[int]) -> None:
        self._over = self._over | torch.isin(self._live, torch.tensor(sorted(rows), dtype=torch.long, device=self._live.device))

    def sampled(self, row: int) -> tuple[Sequence[int], Sequence[float], bool]:
        span = slice(self._starts[row], int(self._count[row]))
        return self._tokens[row, span].tolist(), self._logprobs[row, span].tolist(), bool(self._finished[row])


def _load_model(model_dir: Path, device: torch.device) -> Any:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return load_model(model_dir, dtype).to(device).eval().requires_grad_(False)
