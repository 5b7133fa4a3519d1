"""Keys of the section `fabric` of a file of assumptions: jobs that fill a cluster, and the prices of a fabric's parts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollmux_env.fields import Count, FileModel, Index, NonNegative, Overriding, Positive
from rollmux_env.keys.model import Quantile


class Prices(FileModel):
    """Prices of the parts of a fabric for links of 400 Gbit/s, dollars of 2025."""

    switch_port_usd: NonNegative = 700.0
    """Port of an electrical switch: switches with 64 ports are offered at about 45,000."""
    transceiver_usd: NonNegative = 500.0
    """Transceiver at one end of a fibre: between long-reach modules at 800 or more and short-reach ones at 400."""
    copper_usd: NonNegative = 150.0
    """Passive copper cable from a GPU to its leaf, within a rack."""
    optical_port_usd: NonNegative = 500.0
    """Port of an optical circuit switch, for any rate: estimates of MEMS switches are between 300 and 1,000."""
    radix: Annotated[Count, Field(ge=2)] = 64
    """Number of ports of an electrical switch."""
    paid_h: Positive = 4 * 8760.0
    """Hours over which a fabric is paid."""


OUR_PRICES = Prices()


class FabricLengths(FileModel):
    """The responses of an iteration, in keys of scenario files."""

    batch: Count = 4096 * 16
    """Number of responses of an iteration."""
    prompt_tokens: Index = 1024
    """Length of a prompt, tokens."""
    cap: Count = 8192
    """Largest number of tokens of a response."""
    quantiles: Annotated[tuple[Quantile, ...], Field(strict=False)] = ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, 8192.0))
    """Pairs of a share of the responses and the tokens that they do not exceed, both rising. Default: RollPacker's up to 8k."""


class FabricEntry(FileModel):
    """A job that fills a cluster: some GPUs train, the others generate."""

    label: Annotated[str, Field(min_length=1)]
    """Name of the job within the study."""
    model: Annotated[str, Field(min_length=1)]
    """Size name of the model, or a mixture such as 235B-A22B."""
    gpus: Count
    """Number of all GPUs."""
    gpu: str = "H800"
    """GPU type, as in scenario files."""
    usd_per_gpu_hour: Positive = 5.28
    """Price of one GPU, $/h."""
    tensor: Count
    """Training: number of GPUs of a tensor-parallel group."""
    pipeline: Count = 1
    """Training: number of pipeline stages."""
    data: Count
    """Training: number of replicas."""
    replica: Count
    """Number of GPUs of a generating replica. Over several nodes it sends messages across the fabric."""
    experts: Count = 1
    """Number of training replicas that hold all experts of a layer together."""
    updates: Count = 64
    """Number of mini-batches in which an iteration is trained."""
    lengths: FabricLengths = FabricLengths()
    """Responses of an iteration."""
    traffic: Overriding[str] = None
    """CSV file of flows that replace the computed ones, relative to the file of assumptions: kind,source,target,gb."""


class FabricStudy(FileModel):
    """The jobs and prices that the suite `fabric` compares."""

    prices: Prices = OUR_PRICES
    """Prices of the parts of a fabric."""
    cv: NonNegative = 0.1
    """Coefficient of variation of every duration."""
    jobs: Annotated[tuple[FabricEntry, ...], Field(strict=False)] = ()
    """Jobs that replace our four, each alone on its cluster."""
