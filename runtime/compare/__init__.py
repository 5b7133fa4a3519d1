"""The comparison of `rollmux compare`: the event replay against a real run, and the parts in which they differ."""

from runtime.compare.comparison import compare, comparison_table

__all__ = ["compare", "comparison_table"]
