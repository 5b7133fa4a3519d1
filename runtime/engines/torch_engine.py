"""The engine without an inference server: transformers' model, a KV cache, one batch.

Prompts are padded on the left, so that all rows end in the same column; a prompt that stands there several times (a group) is read
once. A row leaves the batch, and its cache with it, as soon as its response ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.engines.interface import Progress, Response, Sampling
from runtime.engines.model_files import ModelFiles, read_model_files
from runtime.engines.requests import initial_responses, numbers
from runtime.residency.footprint import Footprint
from runtime.residency.offload import Offloader


class TorchEngine:
    """See `runtime.engines.interface.Engine`. Float32 on a CPU, bfloat16 on the first visible CUDA device.

    Args:
        model_dir: a Hugging Face directory.
        max_length: tokens of a prompt and its response together, at most.
        threads: that this process computes with on a CPU.

    Raises:
        InputError: the directory cannot be used.
    """

    def __init__(self, model_dir: Path, *, max_length: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self.version = 0
        self.preemptions = 0  # its cache grows as long as there is memory
        self._files: ModelFiles = read_model_files(model_dir)
        self._max_length = max_length
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = _load(model_dir, self._device)
        state = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        self._offloader = Offloader(lambda: state)
        self._dropped: list[tuple[torch.UntypedStorage, int]] = []  # memory of weights that were not kept, and its bytes

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        resume: Sequence[Response] = (),
        streams: Sequence[int] | None = None,
        ended: Callable[[Sequence[Response]], Collection[int]] | None = None,
    ) -> list[Response]:
        """See `Engine.generate`."""
        self._awake()
        earlier = initial_responses(prompts, sampling, resume, self._files.vocabulary, self._max_length)
        if not prompts:
            return []
        contexts = [tuple(prompt) + (old.token_ids if old else ()) for prompt, old in zip(prompts, earlier, strict=True)]
        uniform = [numbers(sampling.seed, stream, sampling.max_tokens) for stream in streams or range(len(prompts))]
        rows = _Rows(earlier, uniform, self._device, self.version)
        ends = torch.tensor([] if sampling.ignore_end else self._files.end_ids, dtype=torch.long, device=self._device)
        forward = _Forward(self._model, contexts, sampling.max_tokens, self._device)
        logits, sampled = forward.read(), 0
        while True:
            tokens, logprobs = draw(logits, rows.next_numbers(), sampling)
            over = rows.put(tokens, logprobs, sampling.max_tokens, ends)
            sampled += len(tokens)
            if ended is not None and over.any():
                over |= rows.those(ended([rows.response(row) for row in rows.live[over].tolist()]))
            rows.leave(over)
            if progress is not None:
                progress(Progress(len(prompts) - len(rows.live), len(prompts), sampled))
            if not len(rows.live) or (stop is not None and stop()):
                break
            logits = forward.step(tokens, over)
        return [rows.response(row) for row in range(len(prompts))]

    @torch.no_grad()
    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine.update_weights`."""
        self._awake()
        parameters = self._model.state_dict()
        for name, tensor in self._files.checked(weights).items():
            parameters[name].copy_(tensor)
        self.version = version

    def offload(self, drop: bool = False) -> Footprint:
        """See `Engine.offload`."""
        if drop and not self._offloader.offloaded:
            storages = {one.data_ptr(): one.untyped_storage() for one in self._model.parameters()}.values()  # tied ones once
            self._dropped = [(storage, storage.nbytes()) for storage in storages]
            for storage, _ in self._dropped:
                storage.resize_(0)
        return self._offloader.offload()

    def stay(self) -> Footprint:
        """See `Engine.stay`: a KV cache has gone with its batch."""
        return self._offloader.stay()

    def restore(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> Footprint:
        """See `Engine.restore`."""
        if weights is not None:
            self._files.checked(weights)
        elif self._dropped:
            raise RuntimeError("the engine kept no weights when it was offloaded, and no others are given")
        for storage, nbytes in self._dropped:
            storage.resize_(nbytes)
        self._dropped = []
        footprint = self._offloader.restore()
        if weights is not None and version is not None:
            self.update_weights(weights, version)
        return footprint

    def close(self) -> None:
        """See `Engine.close`."""
        self._offloader.close()
        self._model = None

    def _awake(self) -> None:
        if self._model is None or self._offloader.offloaded:
            raise RuntimeError("the engine is offloaded or closed")


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample a token a row.

    Args:
        logits: (rows, vocabulary).
        uniform: (rows,), in [0, 1): decides which token.

    Returns:
        token ids and their log-probs under the distribution that they came from, (rows,) each.
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
    """Leave the likeliest tokens that reach top_p together, at least one, and normalise."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(before >= top_p, -torch.inf).log_softmax(-1)
    return torch.empty_like(ordered).scatter_(-1, order, ordered)


class _Forward:
    """The rows that are still sampled, as the model sees them."""

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
        """Read the contexts; the logits of each row's next token."""
        positions = (self._mask[:, : self._longest].cumsum(-1) - 1).clamp(min=0)
        logits = self._run(self._ids, positions)
        self._select(self._row_of)
        return logits[self._row_of]

    def step(self, tokens: Tensor, over: Tensor) -> Tensor:
        """Append the rows' tokens; those that are over leave. The logits of the next ones."""
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


class _Rows:
    """What was sampled for each row, and which rows go on.

    Attributes:
        live: indices of those, in order.
    """

    def __init__(self, earlier: Sequence[Response | None], uniform: Sequence[Any], device: torch.device, version: int) -> None:
        self._earlier = earlier
        self._version = version
        self._uniform = torch.from_numpy(np.stack(uniform)).to(device)
        self._tokens = torch.zeros(self._uniform.shape, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(self._uniform.shape, dtype=torch.float32, device=device)
        self._starts = [len(old.token_ids) if old else 0 for old in earlier]
        self._count = torch.tensor(self._starts, device=device)  # tokens of each response so far
        self._finished = torch.zeros(len(earlier), dtype=torch.bool, device=device)
        self.live = torch.arange(len(earlier), device=device)

    def next_numbers(self) -> Tensor:
        """The uniform number of each live row's next token."""
        return self._uniform[self.live, self._count[self.live]]

    def put(self, tokens: Tensor, logprobs: Tensor, max_tokens: int, ends: Tensor) -> Tensor:
        """Append a token to each live row; which of them have ended."""
        live = self.live
        self._tokens[live, self._count[live]] = tokens
        self._logprobs[live, self._count[live]] = logprobs
        self._count[live] += 1
        self._finished[live] = (self._count[live] == max_tokens) | torch.isin(tokens, ends)
        return self._finished[live]

    def those(self, rows: Collection[int]) -> Tensor:
        """Which of the live rows these are."""
        return torch.isin(self.live, torch.tensor(sorted(rows), dtype=torch.long, device=self.live.device))

    def leave(self, over: Tensor) -> None:
        """Some of the live rows go on no more."""
        self.live = self.live[~over]

    def response(self, row: int) -> Response:
        """The response of a row as far as it is, with what it went on behind."""
        old, span = self._earlier[row], slice(self._starts[row], int(self._count[row]))
        tokens, logprobs = tuple(self._tokens[row, span].tolist()), tuple(self._logprobs[row, span].tolist())
        before: tuple[int, ...] = ()
        if old is not None:
            tokens, logprobs = old.token_ids + tokens, old.logprobs + logprobs
            before = old.versions_behind(self._version)
        return Response(row, tokens, logprobs, bool(self._finished[row]), self._version, before)


def _load(model_dir: Path, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True)
    return model.to(device).eval().requires_grad_(False)
