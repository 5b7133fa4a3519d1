"""Joining the Ray of a service, which its environment was prepared for."""

from __future__ import annotations

import os
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.execution.own_ray import ENVIRONMENT
from runtime.execution.ray_address import check_address
from runtime.service.address import RayAddress
from runtime.signals import masked

_SOCKET = Path("session_latest") / "sockets" / "raylet"


def join(address: RayAddress) -> None:
    """Join the Ray of a service.

    Raises:
        InputError: it lets nobody in; one line.
    """
    import logging

    import ray

    from runtime.execution.ray_health import quieten_ray

    check_address(address.address)
    if address.home is not None and not (Path(address.home.inside) / _SOCKET).exists():  # Ray would wait for it, and then crash
        raise InputError(
            f"the sockets of its Ray in {one_line(address.home.path, 300)} have gone; stop `rollmux serve` and start it again"
        )
    quieten_ray()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with masked():
            ray.init(address=address.address, namespace=address.namespace, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # which is what Ray raises
        problem = one_line(" ".join(str(error).split()), 500)
        raise InputError(f"--address {address.address}: {problem}") from error
