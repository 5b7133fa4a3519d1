"""Execution of a schedule on real nodes. Floor 3: it imports `policies` and `rollmux_env`, never `trainers`."""
