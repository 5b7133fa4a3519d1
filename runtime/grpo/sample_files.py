"""The samples of a stale job in its checkpoint: what was sampled and not trained on yet, with the versions of every token.

`samples.json` says what there is, and `samples.safetensors` has the numbers: of each engine's share of a rollout the tokens of
prompts and responses one after the other and how many of them there are, log-probs, versions and rewards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from runtime.checkpoints import write_hashed
from runtime.engines.interface import Response
from runtime.grpo.buffer import Rollout
from runtime.grpo.messages import Rolled, Sampled
from runtime.phases import Reported

_INDEX, _NUMBERS = "samples.json", "samples.safetensors"
_Arrays = dict[str, NDArray[Any]]


def write_rollouts(folder: Path, version: int, rollouts: Sequence[Rollout], fetch: Callable[[Any], Any]) -> None:
    """Write them.

    Args:
        version: of the weights. fetch: gives the results of calls of workers, as `runtime_hook.wait`.

    Raises:
        OSError: the disk is full, or the folder is not there.
    """
    index: list[dict[str, Any]] = []
    arrays: _Arrays = {}
    for rollout in rollouts:
        shares = [share for engine in _values(rollout.rolled.samples, fetch) for share in engine]
        for share in shares:
            arrays |= {f"{rollout.number}.{share.place}.{name}": values for name, values in _arrays(share).items()}
        places = [share.place for share in shares]
        known = {"complete": [*rollout.rolled.complete], "metrics": rollout.reported.metrics}
        index.append({"number": rollout.number, "places": places, **known})
    if arrays:
        write_hashed(folder / _NUMBERS, [save(arrays)])  # `save_file` has errors of its own where the disk is full
    write_whole(folder / _INDEX, json.dumps({"version": version, "rollouts": index}))


def read_rollouts(folder: Path) -> tuple[int, list[Rollout]]:
    """The version of the weights, and the rollouts as they were written.

    Raises:
        InputError: the checkpoint is one of a job on-policy; one line.
    """
    if not (folder / _INDEX).is_file():
        raise InputError(f"{folder}: {_INDEX} is missing: the checkpoint is of a job without a staleness")
    known = json.loads((folder / _INDEX).read_bytes())
    arrays: _Arrays = load_file(folder / _NUMBERS) if any(one["places"] for one in known["rollouts"]) else {}
    rollouts = []
    for one in known["rollouts"]:
        shares = [_share(place, arrays, f"{one['number']}.{place}.") for place in one["places"]]
        reported = Reported()
        reported.metrics.update(one["metrics"])
        rollouts.append(Rollout(one["number"], Rolled((shares,), one["complete"]), reported))
    return known["version"], rollouts


def _values(samples: Sequence[Any], fetch: Callable[[Any], Any]) -> list[list[Sampled]]:
    """What each engine has sampled; of a job that goes on from a checkpoint it is here already."""
    calls = [one for one in samples if not isinstance(one, list)]
    fetched = iter(fetch(calls) if calls else ())
    return [one if isinstance(one, list) else next(fetched) for one in samples]


def _arrays(share: Sampled) -> _Arrays:
    prompts, responses = share.prompts, share.responses
    return {
        "prompts": _joined(prompts, np.int64),
        "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int64),
        "tokens": _joined([response.token_ids for response in responses], np.int64),
        "lengths": np.array([len(response.token_ids) for response in responses], np.int64),
        "logprobs": _joined([response.logprobs for response in responses], np.float64),
        "versions": _joined([response.versions for response in responses], np.int64),
        "rewards": np.array(share.rewards, np.float64),
    }


def _joined(rows: Sequence[Sequence[Any]], kind: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.array(row, kind) for row in rows]) if rows else np.zeros(0, kind)


def _share(place: int, arrays: _Arrays, prefix: str) -> Sampled:
    values = {name: arrays[prefix + name] for name in ("prompts", "tokens", "logprobs", "versions", "rewards")}
    prompts = _rows(values["prompts"], arrays[prefix + "prompt_lengths"])
    lengths = arrays[prefix + "lengths"]
    tokens, logprobs, versions = (_rows(values[name], lengths) for name in ("tokens", "logprobs", "versions"))
    responses = [_response(k, *parts) for k, parts in enumerate(zip(tokens, logprobs, versions, strict=True))]
    return Sampled(place, tuple(prompts), tuple(responses), tuple(values["rewards"].tolist()))


def _response(number: int, tokens: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]) -> Response:
    last = versions[-1]
    return Response(number, tokens, logprobs, True, last, tuple(version for version in versions if version != last))


def _rows(values: NDArray[Any], lengths: NDArray[Any]) -> list[tuple[Any, ...]]:
    ends = [0, *np.cumsum(lengths).tolist()]
    return [tuple(values[first:end].tolist()) for first, end in pairwise(ends)]
