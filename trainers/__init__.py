"""Trains placement and dispatch policies. Imports `policies` and `rollmux_env`, never `runtime`."""
