"""Learns placement and dispatch policies. Floor 3: imports `policies` and `rollmux_env`, never `runtime`."""
