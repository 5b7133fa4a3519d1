"""The description of the API (OpenAPI 3.1), made from the operations and the models of their input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from runtime.service.http.endpoint import JSON, Body, Operation

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
_ALWAYS = (400, 401, 403, 429, 431, 503)
_WITH_BODY = (408, 413)


class Error(Body):
    """The reason why a request is refused."""

    error: str
    """One line."""


def describe_api(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the description of operations as an OpenAPI document."""
    models: list[type[BaseModel]] = [
        Error,
        *dict.fromkeys(operation.body for operation in operations if operation.body is not None),
    ]
    references, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    refers = {model: reference for (model, _), reference in references.items()}
    paths: dict[str, Any] = {"/healthz": {"get": {
        "operationId": "healthz",
        "summary": "Whether the service answers.",
        "security": [],
        "responses": {"200": _answer("It answers.", {"type": "object"})} | _refused((400, 429, 431), refers[Error]),
    }}}  # fmt: skip
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, refers)
    return {
        "openapi": "3.1.0",
        "info": {"title": "RollMux service", "version": version("rollmux"), "license": {"name": "Apache-2.0"}},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _described(operation: Operation, refers: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    statuses = sorted({operation.status, *operation.refuses, *_ALWAYS, *(_WITH_BODY if operation.body is not None else ())})
    answers = _refused([status for status in statuses if status >= 400], refers[Error])
    shape = {"type": "object" if operation.media == JSON else "string"}
    answers |= {str(status): _answer(_MEANINGS[status], shape, operation.media) for status in statuses if status < 400}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not None:
        properties = operation.query.model_json_schema()["properties"]
        parameters += ({"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items())
    described = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Takes the right to {operation.right.name.lower()}.",
        "parameters": parameters,
        "responses": answers,
    }
    if operation.body is not None:
        schema = refers[operation.body]
        if not issubclass(operation.body, Body):
            schema = {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return described


def _refused(statuses: Sequence[int], schema: dict[str, Any]) -> dict[str, Any]:
    return {str(status): _answer(_MEANINGS[status], schema) for status in statuses}


def _answer(meaning: str, schema: dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return {"description": meaning, "content": {media: {"schema": schema}}}
