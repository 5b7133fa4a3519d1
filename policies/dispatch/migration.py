"""The option that all rules with long-tail migration have."""

from __future__ import annotations


def check_migrate(share: object) -> None:
    """Refuse what is no share of a rollout's responses.

    Raises:
        ValueError: neither None nor a number between 0 and 1.
    """
    if share is not None and not (isinstance(share, float) and 0 < share < 1):
        raise ValueError(f"migrate must be a number between 0 and 1, not {share}")
