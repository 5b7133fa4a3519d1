"""A job under a launcher of its own: it sleeps where others sample and train. Without a service it runs as it is.

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
