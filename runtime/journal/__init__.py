"""The journal of a run: its facts, how they are written and read, and what is computed from them."""
