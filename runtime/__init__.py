"""Executes a schedule for real. Floor 3: imports `policies` and `rollmux_env`, never `trainers`."""
