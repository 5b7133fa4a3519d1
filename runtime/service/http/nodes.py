"""Nodes: drained, taken back, cleared."""

from __future__ import annotations

from starlette.responses import Response

from runtime.service.http.answers import answer
from runtime.service.http.operations import Call, Operation
from runtime.service.tokens import Right


async def _drain(call: Call) -> Response:
    return answer(await call.service.drain(call.path["node"]))


async def _undrain(call: Call) -> Response:
    return answer(await call.service.undrain(call.path["node"]))


async def _clear(call: Call) -> Response:
    return answer(await call.service.clear(call.path["node"]))


_NODE = "/v1/nodes/{node}"
_REFUSES = (404, 409)

OPERATIONS = (
    Operation("POST", f"{_NODE}/drain", Right.OPERATE, _drain, "Let jobs leave a node.", refuses=_REFUSES, logged="drain"),
    Operation("POST", f"{_NODE}/undrain", Right.OPERATE, _undrain, "Use it again.", refuses=_REFUSES, logged="undrain"),
    Operation(
        "POST",
        f"{_NODE}/clear",
        Right.OPERATE,
        _clear,
        "Nobody runs on a suspect node any more: it may be granted.",
        refuses=_REFUSES,
        logged="clear",
    ),
)
