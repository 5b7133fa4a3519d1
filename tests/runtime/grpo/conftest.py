"""What all tests of GRPO share."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def one_load_at_a_time() -> Iterator[None]:
    """Workers that are threads here load their models one after the other.

    transformers takes `tie_weights` from its base class while it loads a model. Two threads that do so at once may leave it
    without, for all tests that follow in this process. Workers of a run are processes of their own.
    """
    from transformers import PreTrainedModel

    lock, load = Lock(), vars(PreTrainedModel)["from_pretrained"].__func__

    def from_pretrained(cls: type, *arguments: Any, **options: Any) -> Any:
        with lock:
            return load(cls, *arguments, **options)

    with patch.object(PreTrainedModel, "from_pretrained", classmethod(from_pretrained)):
        yield
