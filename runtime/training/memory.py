"""Peak memory of an update, computed from sizes alone, without loading a model or importing torch.

For a rank of W, with P parameters, weights and Adam's moments take 12 P / W bytes in float32 and gradients 4 P / W. Parameters that
FSDP gathers, and activations, are in bf16 on GPUs and in float32 on CPUs. FSDP gathers one layer at a time, and parameters outside
of layers for a whole pass. The peak is the largest of these moments: the end of the forward pass, where log-probs are computed; the
beginning of the backward pass, where they are computed again; the backward pass of a layer; and its end, where the gradients of
parameters outside of layers are reduced. benchmarks/training_memory.py compares the result with measurements.
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
"""Number of logits that are computed at a time: 128 MB in float32."""
LARGE = 50_000_000
"""Number of parameters from which on activations are recomputed in the backward pass instead of kept."""
SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "logits_soft_cap")
"""Keys of a config that modify logits after the output layer. Such a model needs a table of all logits."""
_MASTER = 4  # bytes of a weight, a gradient or a moment
_KEPT_WIDTHS, _KEPT_INNER = 7, 4  # numbers that a layer keeps for a token, in hidden sizes and in widths of its feed-forward part
_NORMS = 8  # additional bytes in bf16 for each number of a hidden size: inputs of two norms in float32
_ENDS = 4  # hidden sizes that are kept for a token after the last layer
_TABLES = 3  # tables of logits in float32: the logits, scaled logits, and their log-softmax or its gradient


class TrainingPeak(NamedTuple):
    """Bytes of one rank at the moment of an update with the largest use of the device, where they add up to `device`.

    Attributes:
        tokens: Tokens in a pass, including prompts and padding.
        state: Weights, Adam's moments, present gradients, and the reference model.
        gathered: Gathered layers, and their gradients before they are reduced.
        activations: Activations of the pass.
        recomputed: Whether activations are recomputed in the backward pass.
        logprobs: Logits of a chunk.
        host: Host memory in addition to the device.
        waiting: Host memory between phases, including new weights to be sent.
        written: Additional host memory while a checkpoint is written and the state changes.
        loading: Host memory while rank 0 loads the model.
        sure: Least device memory that the state takes for any batch.
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
        """Sum of all bytes on the device. On a CPU it is the process's own memory."""
        return self.state + self.gathered + self.activations + self.logprobs


class _Moment(NamedTuple):
    gradients: int
    gathered: int
    activations: int
    logprobs: int


def size_of(files: ModelFiles, config: Mapping[str, Any]) -> ModelSize:
    """Return the sizes of a Hugging Face model.

    Args:
        files: Tensors of the model's files.
        config: Content of its config.json.
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
    """Return the sizes of a Qwen2 with untied embeddings, from the arguments of its config."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + hidden + 2 * keys + 3 * hidden * inner + 2 * hidden
    outside = 2 * config["vocab_size"] * hidden + hidden
    size = (layer * layers + outside, outside, layer, layers, hidden, inner, config["vocab_size"], 2 * layers * keys)
    return ModelSize(*size)


def training_peak(size: ModelSize, settings: Algorithm, world: int, on_gpu: bool, cpu_offload: bool = False) -> TrainingPeak:
    """Return the memory that a rank needs if all responses have the largest allowed length.

    Args:
        size: Sizes of the model.
        settings: The `algorithm` of the job.
        world: Number of ranks.
        on_gpu: Whether ranks have GPUs and compute in bf16.
        cpu_offload: The job's `training.cpu_offload`.
    """
    number, offloaded = (2 if on_gpu else 4), on_gpu and cpu_offload
    length = settings.max_prompt_tokens + settings.max_tokens
    responses = -(-settings.prompts_per_iteration * settings.group_size // (settings.minibatches * world))
    rows = min(responses, max(1, settings.micro_batch_tokens // length))
    share = -(-size.parameters // world)
    moments = _moments(size, rows * length, number, world, rows < responses)
    most = max(moments, key=lambda one: sum(one) - (one.gradients if offloaded else one.gradients - one.gradients // world))
    copies = 2 if settings.kl else 1  # copies of the weights, including those of the reference model
    resident = (2 + copies) * _MASTER * share
    reference = number * size.outside if settings.kl else 0  # remains gathered after its pass
    moving = _MASTER * -(-size.outside // world) if offloaded else 0  # a float32 shard in transfer to or from the host
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
        written=3 * _MASTER * share if offloaded else resident,  # copies of what is written, or else the waiting state itself
        loading=_MASTER * (size.parameters + (share if offloaded or not on_gpu else 0)),
        sure=0 if offloaded else resident + _MASTER * share,
    )


def _moments(size: ModelSize, tokens: int, number: int, world: int, several: bool) -> tuple[_Moment, ...]:
    """Return the bytes of the gradients of all ranks, and of one rank's other tensors, at each moment.

    Args:
        size: Sizes of the model.
        tokens: Tokens in a pass.
        number: Bytes of a number in computations.
        world: Number of ranks.
        several: Whether gradients of more than one pass are accumulated.
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
