"""`rollmux compare`: the event replay against a real run, and where the two part."""

from runtime.compare.comparison import compare, comparison_table

__all__ = ["compare", "comparison_table"]
