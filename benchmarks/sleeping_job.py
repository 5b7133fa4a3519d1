"""An attached job that sleeps instead of sampling and training, and continues from the checkpoint in a file.

ROLLMUX_JOB=first python benchmarks/sleeping_job.py FILE ROLLOUT_S TRAINING_S
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rollmux_client

checkpoint, rollout_s, training_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
with rollmux_client.attach() as job:
    job.continue_from(int(checkpoint.read_text()) if checkpoint.exists() else 0)
    for k in job.iterations():
        with job.phase("rollout"):
            time.sleep(rollout_s)
        with job.phase("training") as phase:
            time.sleep(training_s)
            checkpoint.write_text(str(k + 1))
            phase.report(reward=0.1 * k)
