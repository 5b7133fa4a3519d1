"""The rules of a co-execution group, said once: plain functions over rows, which environments compile."""
