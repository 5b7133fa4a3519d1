"""A job under its own launcher: it sleeps instead of sampling and training. It also runs without a service.

rollmux exec examples/attached.yaml --job first -- python examples/attached_job.py
"""

from __future__ import annotations

import time

import rollmux_client

with rollmux_client.attach() as job:
    for k in job.iterations(5):
        with job.phase("rollout") as phase:
            time.sleep(1.0)
            phase.report(reward=k / 5)
        with job.phase("training"):
            time.sleep(1.0)
        print(f"iteration {k} is done", flush=True)
