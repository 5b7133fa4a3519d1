"""`fabric`: circuits that are set anew in slack (RFabric of OrchestrRL) beside fat trees and rails, by work per dollar."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.fabric import COLUMNS, Arm, FabricCase
from rollmux_env.bench.suite import Suite
from rollmux_env.bench.tables.rollmux import packed_lengths
from rollmux_env.network.fabric import Fabric
from rollmux_env.network.steps import FabricJob
from rollmux_env.network.traffic import Layout
from rollmux_env.timing.rl_job import Batch
from rollmux_env.workloads.catalogue import paper_cluster

# 4,096 prompts with 16 responses of at most 8k tokens each, trained on in mini-batches of 1,024; the lengths are RollPacker's.
BATCH = Batch(4096, 16, 64, 1024, packed_lengths(8192))
RECONFIGURE_MS = (0.1, 1.0, 10.0, 100.0)
TREES, RAILS = (32, 16, 8, 4), (32, 4)  # uplinks of a leaf with 32 GPUs
WIDE, NARROW = 30, 16  # optical ports of a leaf, beside two electrical uplinks: of all its links, and of half of them


def _arms() -> tuple[Arm, ...]:
    trees = tuple(Arm(f"fat tree {32 // up}:1", partial(Fabric, uplinks=up)) for up in TREES)
    rails = tuple(Arm(f"rails {32 // up}:1", partial(Fabric, uplinks=up, rails=True)) for up in RAILS)
    wide, narrow = (partial(Fabric, uplinks=2, optical=ports) for ports in (WIDE, NARROW))
    optical = [
        Arm(f"{policy} {WIDE}, {ms:g} ms", wide, policy, ms / 1e3) for policy in ("rfabric", "oracle") for ms in RECONFIGURE_MS
    ]
    optical.insert(0, Arm(f"static {WIDE}", wide))
    optical += [
        Arm(f"static {NARROW}", narrow),
        Arm(f"rfabric {NARROW}, 10 ms", narrow, "rfabric", 1e-2),
    ]
    return (*trees, *rails, *optical)


def _case(model: str, gpus: int, layout: Layout, replica: int, experts: int = 1) -> FabricCase:
    job = FabricJob(model, layout, gpus - layout.gpus, replica, BATCH, experts)
    usd = paper_cluster().pools["training"].usd_per_gpu_hour
    return FabricCase(f"{model.partition('-')[0]} on {gpus:,}", job, _arms(), usd)


CASES = (
    _case("32B", 1024, Layout(0, 8, 4, 12), 4),
    _case("235B-A22B", 1024, Layout(0, 8, 3, 8), 8, experts=8),
    _case("70B", 2048, Layout(0, 8, 8, 14), 8),
    _case("235B-A22B", 2048, Layout(0, 8, 5, 8), 8, experts=8),
)

SUITE = Suite(
    name="fabric",
    title="Fabrics of a disaggregated job: seconds of an iteration, and work per dollar over a non-blocking fat tree",
    source="OrchestrRL, RFabric",
    cases=(),
    columns=COLUMNS,
    differences=(
        "OrchestrRL's abstract says that RFabric is more cost-efficient at scale than static fat trees, and prints no figure; its "
        "fabric, jobs and prices are not known to us. Prices, jobs and the optical fabric are ours.",
    ),
    seeds=3,
)
