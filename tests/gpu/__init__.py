"""What the runtime does on a GPU, each beside its twin on a CPU: `make test-gpu` runs the first, `make test` the second.

Needs torch and transformers, no network; tests that need vLLM or Ray are skipped where these are missing, and say so.
"""
