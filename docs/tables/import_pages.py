"""Descriptions of the names that a program imports: signatures and docstrings as Markdown."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill, indent
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel

_WIDTH = 100
_VARIADIC: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ITEM = re.compile(r"(\*{0,2}\w+): (.*)", re.S)


def descriptions(module: ModuleType, names: list[str], page: Path) -> str:
    """Return headings, signatures and docstrings of names of a module.

    Args:
        module: The module.
        names: Names in it.
        page: Path of the page, from which links to sources lead.
    """
    return "\n\n".join(block for name in names for block in _describe(name, getattr(module, name), page))


def _describe(name: str, thing: Any, page: Path) -> Iterator[str]:
    yield f"## `{name}`"
    if get_args(thing):  # a name for several types
        yield _filled(f"Alias of `{_annotation(thing)}`.")
        return
    is_instance = not (inspect.isclass(thing) or inspect.isfunction(thing))
    described = type(thing) if is_instance else thing
    root = Path(__file__).resolve().parents[2]
    source = Path(inspect.getsourcefile(described) or "").resolve().relative_to(root)
    yield f"[{source}]({os.path.relpath(root / source, page.parent)})"
    if not is_instance and (signature := _signature(name, thing)):
        yield f"```python\n{signature}\n```"
    yield from _markdown(inspect.getdoc(described) or "")
    if inspect.isclass(described):
        public = (_member(key, member) for key, member in vars(described).items() if not key.startswith("_"))
        if members := [*filter(None, public)]:
            yield "Methods and properties:"
            yield from members


def _member(name: str, member: Any) -> str | None:
    """Return a method or a property of a class as an item of a list, or None if it has no docstring."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    if not inspect.isfunction(function) or not function.__doc__:
        return None
    signature = name if isinstance(member, property) else _signature(name, function, one_line=True)
    first, *others = _markdown(inspect.getdoc(function) or "")
    blocks = [_filled(f"- `{signature}`: {first}", "  "), *(indent(block, "    ") for block in others)]
    return "\n\n".join(blocks)


def _signature(name: str, thing: Any, one_line: bool = False) -> str:
    if inspect.isclass(thing) and (issubclass(thing, BaseModel | BaseException) or inspect.isabstract(thing)):
        return ""
    signature = inspect.signature(thing)
    parameters = [parameter for key, parameter in signature.parameters.items() if key != "self"]
    if inspect.isclass(thing) and all(parameter.kind in _VARIADIC for parameter in parameters):
        return ""
    texts = [*map(_parameter, parameters)]
    for kind, star in ((inspect.Parameter.POSITIONAL_ONLY, "/"), (inspect.Parameter.KEYWORD_ONLY, "*")):
        places = [k for k, parameter in enumerate(parameters) if parameter.kind is kind]
        if places and not any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
            texts.insert(places[0] if star == "*" else places[-1] + 1, star)
    returned = signature.return_annotation
    end = "" if inspect.isclass(thing) or returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    whole = f"{name}({', '.join(texts)}){end}"
    return whole if one_line or len(whole) <= _WIDTH else f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    annotation, default = parameter.annotation, parameter.default
    typed = "" if annotation is inspect.Parameter.empty else f": {_annotation(annotation)}"
    stars = _VARIADIC.get(parameter.kind, "")
    given = "" if default is inspect.Parameter.empty else f"{' = ' if typed else '='}{_plain(default)}"
    return f"{stars}{parameter.name}{typed}{given}"


def _annotation(annotation: Any) -> str:
    """Return an annotation as text, without modules."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", re.sub(r"ForwardRef\('(.+?)'\)", r"\1", text))


def _plain(default: Any) -> str:
    return "..." if " at 0x" in repr(default) or len(repr(default)) > 60 else repr(default)


def _markdown(docstring: str) -> Iterator[str]:
    """Yield the blocks of a docstring in Google style as Markdown."""
    section, code = "", False
    for block in re.split(r"\n{2,}", docstring):
        head, _, rest = block.partition("\n")
        if not code and (found := _SECTION.fullmatch(head)):
            section = found[1]
            yield f"{section}:" if section not in ("Returns", "Yields") else _filled(f"{section}: {' '.join(rest.split())}")
            if section not in ("Returns", "Yields"):
                yield "\n".join(_items(rest))
        elif code or block.startswith(("```", "    ", "|", "$$")):
            code ^= block.count("```") % 2 == 1
            yield block
        elif block.startswith("#"):
            yield f"#{block}"  # below the heading of the name
        elif block.startswith(("- ", "* ", "1. ")):
            yield "\n".join(_filled(item, "  ") for item in re.split(r"\n(?=\S)", block))
        else:
            yield _filled(block)


def _items(text: str) -> Iterator[str]:
    for item in re.split(r"\n(?! {5})", text):
        found = _ITEM.fullmatch(item.strip())
        yield _filled(f"- `{found[1]}`: {found[2]}" if found else f"- {item.strip()}", "  ")


def _filled(text: str, indent: str = "") -> str:
    return fill(" ".join(text.split()), _WIDTH - 4, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
