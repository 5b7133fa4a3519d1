"""GPUs of two types divided among the phases of one asynchronous job: what reproduces AReaL-Hex, and nothing of the core."""
