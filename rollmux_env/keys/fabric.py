"""Keys of the section `fabric` of a file of assumptions: jobs that fill a cluster, and what the parts of its fabric cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollmux_env.fields import Count, FileModel, Index, NonNegative, Overriding, Positive
from rollmux_env.keys.model import Quantile


class Prices(FileModel):
    """Of the parts of a fabric for links of 400 Gbit/s, dollars of 2025."""

    switch_port_usd: NonNegative = 700.0
    """Port of an electrical switch: switches with 64 ports are offered at about 45,000."""
    transceiver_usd: NonNegative = 500.0
    """Transceiver at one end of a fibre: between long-reach modules at 800 and more and short-reach ones at 400."""
    copper_usd: NonNegative = 150.0
    """Copper cable from a GPU to its leaf: passive, within a rack."""
    optical_port_usd: NonNegative = 500.0
    """Port of an optical circuit switch: estimates of MEMS switches lie between 300 and 1,000; any rate passes."""
    radix: Annotated[Count, Field(ge=2)] = 64
    """Ports of an electrical switch."""
    paid_h: Positive = 4 * 8760.0
    """Hours over which a fabric is paid."""


OUR_PRICES = Prices()


class FabricLengths(FileModel):
    """The responses of an iteration, in keys of scenario files."""

    batch: Count = 4096 * 16
    """Responses of an iteration."""
    prompt_tokens: Index = 1024
    """Tokens of a prompt."""
    cap: Count = 8192
    """Most tokens of a response."""
    quantiles: Annotated[tuple[Quantile, ...], Field(strict=False)] = ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, 8192.0))
    """Pairs of a share of the responses and the tokens that they do not pass, both rising; left out, RollPacker's up to 8k."""


class FabricEntry(FileModel):
    """A job that fills a cluster: training on some GPUs, generation on the others."""

    label: Annotated[str, Field(min_length=1)]
    """What tells it from the others."""
    model: Annotated[str, Field(min_length=1)]
    """A size, or a mixture such as 235B-A22B."""
    gpus: Count
    """All GPUs."""
    gpu: str = "H800"
    """Their type, as in scenario files."""
    usd_per_gpu_hour: Positive = 5.28
    """Price of one."""
    tensor: Count
    """Training: GPUs of a tensor-parallel group."""
    pipeline: Count = 1
    """Training: stages of a pipeline."""
    data: Count
    """Training: replicas."""
    replica: Count
    """GPUs of a replica that generates; over several nodes it sends messages across the fabric."""
    experts: Count = 1
    """Replicas of the training that hold all experts of a layer together."""
    updates: Count = 64
    """Mini-batches that an iteration is trained in."""
    lengths: FabricLengths = FabricLengths()
    """The responses of an iteration."""
    traffic: Overriding[str] = None
    """CSV file of flows in place of ours, relative to the file of assumptions: kind,source,target,gb."""


class FabricStudy(FileModel):
    """What the suite `fabric` compares."""

    prices: Prices = OUR_PRICES
    """Of the parts of a fabric."""
    cv: NonNegative = 0.1
    """Coefficient of variation of every duration, about what is expected."""
    jobs: Annotated[tuple[FabricEntry, ...], Field(strict=False)] = ()
    """In place of our four, each alone on its cluster."""
