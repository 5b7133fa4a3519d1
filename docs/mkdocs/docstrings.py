"""Our docstrings have several parameters on a line where they are short; the site shows each on a line of its own."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(^(Args|Attributes):\n)((?:^ {4}.*\n?)+)", re.M)


class OneLineEach(griffe.Extension):
    """Parts lines of a docstring's sections before names that it is about."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Part the sections of an object's docstring, when all is loaded."""
        if obj.docstring is None or not isinstance(obj, griffe.Function | griffe.Class):
            return
        names = [*(parameter.name for parameter in obj.parameters), *obj.members, "_"]
        name = "|".join(map(re.escape, names))
        before = re.compile(rf"(?<=[.;]) ((?:{name})(?:, (?:{name}))*): ")
        obj.docstring.value = _SECTION.sub(
            lambda section: section[1] + before.sub(r"\n    \1: ", section[3]), obj.docstring.value.rstrip() + "\n"
        )
