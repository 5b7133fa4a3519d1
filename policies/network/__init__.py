"""Network policies: which circuits join the leaves of a fabric, and when they are set anew."""

from __future__ import annotations

from collections.abc import Callable

from policies.named import make_named
from policies.network.oracle import Oracle
from policies.network.rfabric import RFabric
from policies.network.static import Static
from rollmux_env.network.play import NetworkPolicy, Yardstick

NETWORK: dict[str, Callable[..., NetworkPolicy | Yardstick]] = {"static": Static, "rfabric": RFabric, "oracle": Oracle}


def make_network(spec: str) -> NetworkPolicy | Yardstick:
    """Create a network policy by name, with options as in `rfabric,margin=1.5`.

    Raises:
        InputError: unknown name or options; one line.
    """
    return make_named("network policy", NETWORK, spec)
