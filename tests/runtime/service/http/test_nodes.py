"""Nodes are drained and taken back over HTTP and by command, by those who may, and status and metrics say so."""

from __future__ import annotations

import json

import pytest

from runtime.service.address import ServiceAddress, announce
from runtime.service.operations_log import OPERATIONS
from runtime.service.tokens import Right
from tests.conftest import Command
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_leases import attach


def pool(served: Served, name: str) -> dict[str, int]:
    pools: dict[str, dict[str, int]] = served.ask("GET", "/v1/status").value["pools"]
    return {key: value for key, value in pools[name].items() if key in ("nodes", "busy", "idle", "free", "draining")}


def test_a_node_is_drained_and_taken_back(served: Served) -> None:
    answer = served.ask("POST", "/v1/nodes/rollout-1/drain")
    assert (answer.status, answer.value["drained"]) == (200, True), answer
    assert pool(served, "rollout") == {"nodes": 2, "busy": 0, "idle": 0, "free": 1, "draining": 1}
    assert 'rollmux_nodes{pool="rollout",state="draining"} 1.0' in served.ask("GET", "/metrics").value
    assert served.ask("POST", "/v1/nodes/rollout-1/drain").status == 409
    assert served.ask("POST", "/v1/nodes/rollout-1/undrain").status == 200
    assert pool(served, "rollout")["draining"] == 0
    assert served.ask("POST", "/v1/nodes/rollout-1/undrain").status == 409
    assert served.ask("POST", "/v1/nodes/rollout-9/drain").status == 404


def test_it_takes_the_right_to_operate_and_is_written_down(served: Served) -> None:
    ann = served.tokens.make("ann", Right.ATTACH)
    assert served.ask("POST", "/v1/nodes/rollout-1/drain", token=ann).status == 403
    assert pool(served, "rollout")["draining"] == 0
    bob = served.tokens.make("bob", Right.OPERATE)
    for operation in ("drain", "undrain"):
        assert served.ask("POST", f"/v1/nodes/rollout-1/{operation}", token=bob).status == 200
    entries = [json.loads(line) for line in (served.folder / OPERATIONS).read_text().splitlines()]
    assert [(one["operation"], one["subject"]) for one in entries if one["user"] == "bob"] == [
        ("drain", "rollout-1"),
        ("undrain", "rollout-1"),
    ]


def test_an_owner_whose_job_moves_is_told_so_and_attaches_anew(served: Served) -> None:
    lease = attach(served, "moves", movable=True)
    at, ask = f"/v1/leases/{lease}", {"phase": "rollout", "iteration": 0}
    granted = served.ask("POST", f"{at}/acquire", ask).value
    (node,) = [one["name"] for one in granted["nodes"]["rollout"]]
    other = {"rollout-0": "rollout-1", "rollout-1": "rollout-0"}[node]
    assert served.ask("POST", f"/v1/nodes/{node}/drain").value["moves"] == ["moves"]
    for phase in ("rollout", "training"):
        assert served.ask("POST", f"{at}/acquire", {"phase": phase, "iteration": 0}).value["granted"]
        assert served.ask("POST", f"{at}/release", {"phase": phase, "iteration": 0}).status == 200
    assert served.ask("POST", f"{at}/acquire", {"phase": "rollout", "iteration": 1}).value["move"]
    answer = served.ask("POST", "/v1/jobs/moves/attach", {"wait_s": 30}).value
    assert [one["name"] for one in answer["nodes"]["rollout"]] == [other] and answer["iteration"] == 1
    assert served.ask("POST", f"/v1/nodes/{node}/undrain").status == 200
    assert served.ask("DELETE", f"/v1/leases/{answer['lease']}?done=true").status == 200


def test_an_owner_for_whose_job_there_is_no_room_waits_and_goes_on(served: Served) -> None:
    lease = attach(served, "queues", movable=True)
    at = f"/v1/leases/{lease}"
    assert served.ask("POST", f"{at}/acquire", {"phase": "rollout", "iteration": 0}).value["granted"]
    own = served.ask("GET", "/v1/jobs/queues").value["nodes"][0]
    for node in sorted(("rollout-0", "rollout-1"), key=lambda name: name == own):  # the other one first: it cannot move there
        served.ask("POST", f"/v1/nodes/{node}/drain")
    for phase in ("rollout", "training"):
        assert served.ask("POST", f"{at}/acquire", {"phase": phase, "iteration": 0}).value["granted"]
        assert served.ask("POST", f"{at}/release", {"phase": phase, "iteration": 0}).status == 200
    assert served.ask("POST", f"{at}/acquire", {"phase": "rollout", "iteration": 1}).value["move"]
    waits = served.ask("POST", "/v1/jobs/queues/attach", {"wait_s": 0.1}).value
    assert waits["placed"] is False
    for node in ("rollout-0", "rollout-1"):
        assert served.ask("POST", f"/v1/nodes/{node}/undrain").status == 200
    answer = served.ask("POST", "/v1/jobs/queues/attach", {"wait_s": 30}).value
    assert answer["iteration"] == 1, answer
    assert served.ask("DELETE", f"/v1/leases/{answer['lease']}?done=true").status == 200


def test_the_commands_ask_the_service(served: Served, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(served.folder, ServiceAddress(served.server.url, served.token, None))
    monkeypatch.setenv("ROLLMUX_SERVICE", str(served.folder))
    assert command("drain", "training-1") == (0, "training-1 is drained\n", "")
    assert command("undrain", "training-1") == (0, "training-1 is used again\n", "")
    status, out, err = command("undrain", "training-1")
    assert (status, out) == (2, "") and "training-1: is not drained" in err and err.count("\n") == 1
    lease = attach(served, "stays")
    node = served.ask("GET", "/v1/jobs/stays").value["nodes"][0]
    status, out, err = command("drain", node)
    assert (status, err) == (0, "")
    assert out == f"{node} is being drained\nstays: cannot move: the node is used until it ends\n"
    assert command("undrain", node)[0] == 0
    assert served.ask("DELETE", f"/v1/leases/{lease}?done=true").status == 200
