"""Memory that an update takes at its peak, from sizes alone: nothing is loaded, and no torch is imported.

Of a rank of W, for P parameters: weights and Adam's moments are 12 P / W bytes in float32, gradients 4 P / W. What FSDP gathers, a
layer at a time and what is outside of layers as long as a pass takes, is bf16 on GPUs and float32 on CPUs, as are activations. The
moments at which most may be there are compared: the end of the forward pass, where log-probs are computed; the beginning of the
backward pass, where they are computed again; the backward pass of a layer; and its end, where the gradients of what is outside of
layers are reduced. benchmarks/training_memory.py holds it to measurements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from runtime.engines.memory import ModelSize
from runtime.engines.model_files import ModelFiles
from runtime.jobs.grpo_spec import Algorithm

CHUNK = 1 << 25
"""Logits that are there at a time: 128 MB in float32."""
LARGE = 50_000_000
"""Parameters from which on activations are recomputed in the backward pass; those of smaller models are kept."""
SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Of a config: what is done to logits after the output layer. Such a model has a table of all of them."""
_MASTER = 4  # bytes of a number of weights, gradients and moments
_KEPT_WIDTHS, _KEPT_INNER = 7, 4  # numbers that a layer keeps a token, in hidden sizes and in widths of its feed-forward part
_NORMS = 8  # bytes beside them in bf16, a hidden size: inputs of two norms in float32
_ENDS = 4  # hidden sizes that are kept a token after the last layer
_TABLES = 3  # of logits in float32: as they are, scaled, and their log-softmax; or its gradient


class TrainingPeak(NamedTuple):
    """Bytes of one rank, in the moment of an update at which most are on the device; there they add up to `device`.

    Attributes:
        tokens: in a pass, prompts and padding included.
        state: weights, Adam's moments, the gradients that are there, and the reference model.
        gathered: whole layers, and their gradients on the way to the ranks that keep them.
        activations: of the pass. recomputed: they are, in the backward pass. logprobs: logits of a chunk.
        host: beside the device, in host memory. waiting: between phases, in host memory, new weights to be sent included.
        written: beside them, of the state that a checkpoint is written from while it changes.
        loading: while rank 0 loads, in host memory.
        sure: the least of the device's memory that the state takes, whatever is trained on.
    """

    tokens: int
    state: int
    gathered: int
    activations: int
    recomputed: bool
    logprobs: int
    host: int
    waiting: int
    written: int
    loading: int
    sure: int

    @property
    def device(self) -> int:
        """All that is on the device; on a CPU the process's own memory."""
        return self.state + self.gathered + self.activations + self.logprobs


class _Moment(NamedTuple):
    gradients: int
    gathered: int
    activations: int
    logprobs: int


def size_of(files: ModelFiles, config: Mapping[str, Any]) -> ModelSize:
    """The sizes of a Hugging Face model.

    Args:
        config: its config.json.
    """
    layers = Counter[str]()
    for name, shape in files.shapes.items():
        if layer := re.match(r".*?\.\d+(?=\.)", name):
            layers[layer[0]] += prod(shape)
    hidden = files.shapes[files.embedding][1]
    return ModelSize(
        parameters=files.parameters,
        outside=files.parameters - layers.total(),
        layer=max(layers.values(), default=0),
        layers=len(layers),
        hidden=hidden,
        inner=int(config.get("intermediate_size") or 4 * hidden),
        vocabulary=files.vocabulary,
        cached=files.cached,
        whole_logits=any(config.get(name) for name in SCALES),
    )


def tiny_size(config: Mapping[str, Any]) -> ModelSize:
    """Those of a Qwen2 with untied embeddings, from the arguments of its config."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + hidden + 2 * keys + 3 * hidden * inner + 2 * hidden
    outside = 2 * config["vocab_size"] * hidden + hidden
    size = (layer * layers + outside, outside, layer, layers, hidden, inner, config["vocab_size"], 2 * layers * keys)
    return ModelSize(*size)


def training_peak(size: ModelSize, settings: Algorithm, world: int, on_gpu: bool, cpu_offload: bool = False) -> TrainingPeak:
    """What a rank needs when all responses are as long as they may be.

    Args:
        world: ranks. on_gpu: they have GPUs, and compute in bf16. cpu_offload: `training.cpu_offload` of the job.
    """
    number, offloaded = (2 if on_gpu else 4), on_gpu and cpu_offload
    length = settings.max_prompt_tokens + settings.max_tokens
    responses = -(-settings.prompts_per_iteration * settings.group_size // (settings.minibatches * world))
    rows = min(responses, max(1, settings.micro_batch_tokens // length))
    share = -(-size.parameters // world)
    moments = _moments(size, rows * length, number, world, rows < responses)
    most = max(moments, key=lambda one: sum(one) - (one.gradients if offloaded else one.gradients - one.gradients // world))
    copies = 2 if settings.kl else 1  # of the weights: with those of the reference model
    resident = (2 + copies) * _MASTER * share
    reference = number * size.outside if settings.kl else 0  # stays gathered after its pass
    moving = _MASTER * -(-size.outside // world) if offloaded else 0  # a float32 shard on its way to or from the host
    state = 0 if offloaded else resident + most.gradients // world
    return TrainingPeak(
        tokens=rows * length,
        state=state,
        gathered=most.gathered + reference + moving,
        activations=most.activations,
        recomputed=size.parameters >= LARGE,
        logprobs=most.logprobs,
        host=resident + _MASTER * share if offloaded else 0,
        waiting=resident + number * share,
        written=3 * _MASTER * share if offloaded else resident,  # copies of what is written; or all that waits where it is read
        loading=_MASTER * (size.parameters + (share if offloaded or not on_gpu else 0)),
        sure=0 if offloaded else resident + _MASTER * share,
    )


def _moments(size: ModelSize, tokens: int, number: int, world: int, several: bool) -> tuple[_Moment, ...]:
    """Bytes of all ranks' gradients, and of one rank's others, at each moment.

    Args:
        number: bytes of a number that is computed with. several: gradients of more than one pass are added up.
    """
    half, recomputed = number < _MASTER, size.parameters >= LARGE
    row = tokens * number * size.hidden
    of_layer = row * _KEPT_WIDTHS + tokens * number * (_KEPT_INNER * size.inner + size.cached // max(size.layers, 1))
    of_layer += tokens * _NORMS * size.hidden if half else 0
    between = row * size.layers + (0 if recomputed else of_layer * size.layers)
    within = 2 * row + tokens * number * size.inner + (of_layer if recomputed else 0)
    logits = _MASTER * (tokens * size.vocabulary if size.whole_logits else min(CHUNK, tokens * size.vocabulary))
    backward = _TABLES * logits if size.whole_logits else (5 if half else 4) * logits // 2
    outside, head = size.outside, size.vocabulary * size.hidden
    whole = _MASTER * size.parameters
    before, layers = (whole, whole) if several else (0, whole - _MASTER * outside)
    added = _MASTER * outside // world if several else 0
    return (
        _Moment(before, number * outside, between + _ENDS * row, _TABLES * logits),
        _Moment(before, number * outside + (_MASTER + (number if half else 0)) * head, between + _ENDS * row, backward),
        _Moment(layers, number * outside + number * head + (3 * number + _MASTER) * size.layer, between + within, 0),
        _Moment(layers, (2 * number + _MASTER) * outside, 0, 0),
        _Moment(whole, (number + _MASTER) * outside + added, 0, 0),
    )
