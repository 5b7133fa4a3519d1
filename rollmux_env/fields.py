"""Fields of the files that users write: their types, with bounds and error messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from operator import not_
from textwrap import dedent
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, format_error, problems

MAX_NODES_OF_A_JOB = 4096
LARGEST = 1e15  # limit of any number: far above what a cluster has, and sums and products of a few stay finite
ID_PATTERN = "^[A-Za-z0-9._-]{1,64}$"
USER_PATTERN = "^[A-Za-z0-9._@+-]{0,64}$"
EVERY_USER = "*"
QUOTA_PATTERN = r"^([A-Za-z0-9._@+-]{0,64}|\*)$"


def whole(value: Any) -> Any:
    """Return a float such as 3.0 or 3e0 as an integer, since YAML 1.2 and JSON Schema do not distinguish them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def counted_keys(things: str) -> Callable[[Any], Any]:
    """Return a function that returns a mapping with integer keys, which JSON can only write as strings.

    Args:
        things: Plural of what the keys count, for error messages.
    """

    def integers(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys: dict[Any, Any] = {}
        for key, item in value.items():
            number = int(key) if isinstance(key, str) and re.fullmatch("[1-9][0-9]{0,8}", key) else whole(key)
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"{describe(key)} is not a number of {things}")
            if number in keys:
                raise ValueError(f"{number} {things} are given twice")
            keys[number] = item
        return dict(sorted(keys.items()))

    return integers


def _id(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        kind = "boolean" if isinstance(value, bool) else "number"
        raise ValueError(f"must be text, not the {kind} {describe(value)}: quote it")
    if isinstance(value, str) and not re.fullmatch(ID_PATTERN[1:-1], value):
        raise ValueError(f"may hold 1 to 64 letters A-Z and a-z, digits, dots, underscores and hyphens, not {describe(value)}")
    if value in (".", ".."):
        raise ValueError(f"must not be {describe(value)}, which a file system takes for a folder")
    return value


def _user(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return _id(value)  # its error says to quote the value
    if isinstance(value, str) and not re.fullmatch(USER_PATTERN[1:-1], value):
        raise ValueError(f"may hold up to 64 letters A-Z and a-z, digits, and any of . _ @ + -, not {describe(value)}")
    return value


def _quota_user(value: Any) -> Any:
    return value if value == EVERY_USER else _user(value)


def _version(value: int) -> int:
    if value != 1:
        raise ValueError(f"must be 1, the only version of this file format, not {describe(value)}")
    return value


def _positive_zero(value: float) -> float:
    return value + 0.0


def by_name(value: Any) -> Any:
    """Return a mapping as it is, and a text as the `name` of a mapping."""
    return {"name": value} if isinstance(value, str) else value


def stated(value: Any) -> Any:
    """Return the value of a key that may be missing but not null."""
    if value is None:
        raise ValueError("has no value (null); leave the key out")
    return value


# The bounds precede the validators: after one, pydantic would not write them into the JSON Schema.
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_positive_zero)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, le=LARGEST, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, le=2**31), BeforeValidator(whole)]
Count = Annotated[int, Field(ge=1, le=2**31), BeforeValidator(whole)]
Staleness = Annotated[int, Field(ge=0, le=64), BeforeValidator(whole)]
NodeCount = Annotated[int, Field(ge=1, le=MAX_NODES_OF_A_JOB), BeforeValidator(whole)]
Priority = Annotated[int, Field(ge=-(2**31), le=2**31), BeforeValidator(whole)]
UserName = Annotated[str, BeforeValidator(_user), Field(json_schema_extra={"pattern": USER_PATTERN})]
QuotaName = Annotated[str, BeforeValidator(_quota_user), Field(json_schema_extra={"pattern": QUOTA_PATTERN})]
PoolName = Annotated[str, BeforeValidator(_id), Field(json_schema_extra={"pattern": ID_PATTERN})]
JobId = Annotated[str, BeforeValidator(_id), Field(json_schema_extra={"pattern": ID_PATTERN})]
Version = Annotated[int, BeforeValidator(whole), AfterValidator(_version), Field(json_schema_extra={"const": 1})]


V = TypeVar("V")
Unwritten = Annotated[V, Field(exclude_if=not_)]
"""Type of a key whose empty value is not written, so that files without the key keep their hash."""

Overriding = Annotated[V | None, BeforeValidator(stated), Field(exclude_if=lambda value: value is None)]
"""Type of a key that overrides another value if it is given."""


class FileModel(BaseModel):
    """A mapping of a file: strict, without unknown keys, and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema with the texts below the fields as descriptions.

        Pydantic's own option would read them from the source at the start of every command.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _texts(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        for described in properties.values():
            _name_limits(described)
        return schema


def _name_limits(schema: dict[str, Any]) -> None:
    """Rename the limits after a validator to those of JSON Schema, since pydantic leaves them as they are."""
    for own, name in (("ge", "minimum"), ("le", "maximum")):
        if own in schema:
            schema[name] = schema.pop(own)
    for choice in schema.get("anyOf", ()):
        _name_limits(choice)


def _texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the strings below the fields of a model and of its base classes, by field."""
    texts: dict[str, str] = {}
    for kind in reversed(model.mro()[: model.mro().index(FileModel)]):
        (body,) = ast.parse(dedent(getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = cleandoc(text)
    return texts


class Checked:
    """A frozen dataclass of numbers whose fields are checked by their types, like those of files.

    Attributes:
        what: Start of error messages, or empty.

    Raises:
        InputError: If a field has an invalid value. The message names the field.
    """

    what: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        try:
            _model_of(kind).model_validate(vars(self))
        except ValidationError as error:
            raise InputError(f"{self.what}: {format_error(problems(error)[0], None)}".removeprefix(": ")) from None


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {field.name: (hints[field.name], ...) for field in fields(kind)}
    return create_model(kind.__name__, __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **values)
