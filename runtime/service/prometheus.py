"""Figures of a service as text that Prometheus reads.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby

from runtime.metrics import BOUNDARIES_S, DEFINITIONS, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def to_text(samples: Sequence[Sample]) -> str:
    """Samples with the type and description of each figure; those of one figure stand together. Counters end in `_total`."""
    return "".join(
        f"{line}\n"
        for name, group in groupby(sorted(samples, key=lambda sample: sample.name), key=lambda sample: sample.name)
        for line in _lines(name, group)
    )


def exported_names() -> set[str]:
    """Every name that `to_text` may write."""
    return {written for name in DEFINITIONS for written in _written(name)}


def _written(name: str) -> tuple[str, ...]:
    """Names of the series of a figure."""
    match DEFINITIONS[name].kind:
        case "counter":
            return (f"{name}_total",)
        case "histogram":
            return f"{name}_bucket", f"{name}_sum", f"{name}_count"
        case _:
            return (name,)


def _lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    kind, description, _ = DEFINITIONS[name]
    written = _written(name)
    family = written[0] if kind == "counter" else name
    yield f"# HELP {family} {_escaped(description)}"
    yield f"# TYPE {family} {kind}"
    for sample in samples:
        if kind == "histogram":
            ends = (*map(_number, BOUNDARIES_S), "+Inf")
            for end, count in zip(ends, accumulate(sample.buckets), strict=True):
                yield f"{written[0]}{_labels(sample.tags | {'le': end})} {count}"
            yield f"{written[1]}{_labels(sample.tags)} {_number(sample.value)}"
            yield f"{written[2]}{_labels(sample.tags)} {sample.times}"
        else:
            yield f"{written[0]}{_labels(sample.tags)} {_number(sample.value)}"


def _labels(tags: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value, quotes=True)}"' for key, value in tags.items()) + "}" if tags else ""


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    """As Go reads it: `NaN`, `+Inf` and `-Inf` for what is no number."""
    text = repr(float(value))
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)
