"""Training of placement, dispatch and rollout policies. Imports `policies` and `rollmux_env`, never `runtime`."""
