"""The JSON Schema of a scenario file, for editors and other programs.

It refuses what a schema can express. Only `load_scenario` checks that keys of `by_nodes` exceed `nodes`, ids differ, `drift` is in
order, nodes and memory fit the cluster, files of models and lengths exist, and jobs are complete once `defaults` is merged.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from rollmux_env.keys.cluster import SIDES
from rollmux_env.keys.job import STAYS
from rollmux_env.scenario import Scenario

# Mappings into which `defaults` is merged.
_MERGED = ("Job", "Phase", "Training", "Actual", "Switch", "Colocated", "Model", "Lengths", "Timing")


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file as written, before `defaults` is merged.

    With `defaults`, keys that a job requires may be absent, so that only the keys that its jobs have are checked.
    """
    schema = Scenario.model_json_schema()
    definitions = schema["$defs"]
    job, training = definitions["Job"], definitions["Training"]
    seconds = training["properties"]["by_nodes"].pop("additionalProperties")
    training["properties"]["by_nodes"] |= {"patternProperties": {"^[1-9][0-9]{0,8}$": seconds}, "additionalProperties": False}
    cluster = definitions["Cluster"]
    for owner, name in (*((job, stay) for stay in STAYS), *((cluster, side) for side in SIDES)):
        described = owner["properties"][name]  # null is only what an absent key becomes
        owner["properties"][name] = described["anyOf"][0] | {"description": described["description"]}
    del cluster["properties"]["pools"]["default"]
    cluster["properties"]["pools"] |= {"minProperties": 1, "additionalProperties": False}
    on_one_device = {"properties": {"one_device": {"const": True}}, "required": ["one_device"]}
    cluster["if"] = {"required": ["pools"]}
    cluster["then"] = {
        "not": {"anyOf": [{"required": [name]} for name in SIDES]},
        "if": on_one_device,
        "then": {"properties": {"pools": {"propertyNames": {"enum": [*SIDES]}, "required": ["training"]}}},
    }
    cluster["else"] = {"required": ["training"], "if": on_one_device, "else": {"required": ["rollout"]}}

    by_name = job["properties"]["model"]
    by_name["anyOf"].insert(0, {"type": "string", "minLength": 1})
    job["required"] = [name for name in job["required"] if name not in SIDES]
    for name in ("Phase", "Training"):  # only a job with a model may leave its seconds out, see below
        definitions[name].pop("required")

    for name in _MERGED:
        definitions[f"Partial{name}"] = partial = _with_partial_references(definitions[name])
        partial["title"] = f"Partial{name}"
        partial.pop("required", None)
    job["oneOf"] = [{"required": [stay]} for stay in STAYS]
    job["if"] = {"properties": {"model": {"not": {"type": "null"}}}, "required": ["model"]}
    job["then"] = {"properties": {"lengths": {"not": {"type": "null"}}}, "required": ["lengths"]}
    job["else"] = {"properties": {name: {"required": ["worst_case_s"]} for name in SIDES}, "required": list(SIDES)}
    partial_job = definitions["PartialJob"]
    partial_job["not"] = {"required": list(STAYS)}
    definitions["Defaults"] = defaults = copy.deepcopy(partial_job)
    defaults |= {"title": "Defaults", "description": "Merged, key by key and level by level, under every job."}
    del defaults["properties"]["id"]
    partial_job["required"] = ["id"]

    jobs = schema["properties"]["jobs"]
    del jobs["items"]
    schema["properties"]["defaults"] = {"$ref": "#/$defs/Defaults", "description": defaults["description"]}
    schema["if"] = {"required": ["defaults"]}
    schema["then"] = {"properties": {"jobs": {"items": {"$ref": "#/$defs/PartialJob"}}}}
    schema["else"] = {"properties": {"jobs": {"items": {"$ref": "#/$defs/Job"}}}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "RollMux scenario file, version 1"}


def _with_partial_references(definition: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(definition)
    for name in _MERGED:
        text = text.replace(f'"#/$defs/{name}"', f'"#/$defs/Partial{name}"')
    partial: dict[str, Any] = json.loads(text)
    return partial
