"""The description of the API (OpenAPI 3.1), made of the operations and of the models of what is sent with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from runtime.service.http.answers import JSON
from runtime.service.http.operations import Body, Operation

_SCHEMAS = "#/components/schemas/{model}"
_MEANINGS = {
    200: "The answer.",
    201: "It is in the journal.",
    202: "It ends.",
    400: "Malformed.",
    401: "No token, or one that is none of the service's.",
    403: "This token has not the right.",
    404: "There is no such thing.",
    408: "The body did not come.",
    409: "Not possible in this state.",
    413: "The body is too large.",
    422: "A job that cannot be.",
    429: "Above a limit.",
    431: "The headers are too large.",
    503: "The journal cannot be written now.",
}
_TYPES = {JSON: "object"}
_ALWAYS = (400, 401, 403, 429, 431, 503)
_WITH_BODY = (408, 413)
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "One line."}},
    "required": ["error"],
    "additionalProperties": False,
}


def describe_api(operations: Iterable[Operation]) -> dict[str, Any]:
    """The description."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {"/healthz": {"get": _health()}}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "RollMux service", "version": version("rollmux"), "license": {"name": "Apache-2.0"}},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _health() -> dict[str, Any]:
    answers = {"200": _answer("It answers.", {"type": "object"}), **{str(status): _refused(status) for status in (400, 429, 431)}}
    return {"operationId": "healthz", "summary": "Whether the service answers.", "security": [], "responses": answers}


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    statuses = {operation.status, *operation.refuses, *_ALWAYS, *(_WITH_BODY if operation.body is not None else ())}
    answers = {str(status): _refused(status) for status in sorted(statuses) if status >= 400}
    for status in sorted(statuses):
        if status < 400:
            answers[str(status)] = _answer(_MEANINGS[status], {"type": _TYPES.get(operation.media, "string")}, operation.media)
    names = re.findall(r"{(\w+)}", operation.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    if operation.query is not None:
        parameters += _parameters(operation.query)
    described = {
        "operationId": operation.work.__name__.strip("_"),
        "summary": operation.summary,
        "description": f"Takes the right to {operation.right.name.lower()}.",
        "parameters": parameters,
        "responses": answers,
    }
    if operation.body is not None:
        schema: dict[str, Any] = _schema_of(operation.body, schemas)
        if not issubclass(operation.body, Body):
            schema = {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return described


def _parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    properties = query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


def _schema_of(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    schema = model.model_json_schema(ref_template=_SCHEMAS)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": _SCHEMAS.format(model=model.__name__)}


def _refused(status: int) -> dict[str, Any]:
    return _answer(_MEANINGS[status], {"$ref": _SCHEMAS.format(model="Error")})


def _answer(meaning: str, schema: dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return {"description": meaning, "content": {media: {"schema": schema}}}
