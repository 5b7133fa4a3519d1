"""Experiments: the comparisons behind `rollmux.bench`, `rollmux.replay`, `rollmux.sweep` and the commands of the same names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from pydantic import ValidationError

from policies.dispatch import make_dispatch
from policies.named import make_with
from policies.registry import checked, make_policy
from policies.rollout import migrating
from policies.rollout.places import check_sizes, make_at
from policies.targets import find_scenario
from rollmux_env.bench.fleets import with_fleet
from rollmux_env.bench.harness import FLUID_ONLY, Contender, Report, Result, Task, can_replay, run_tasks
from rollmux_env.bench.results import SWEEP_SCHEMA, BenchResult, RunResult, SweepPoint, SweepResult, bench_result
from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.reading import read_mapping
from rollmux_env.replay.failures import Failures
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import brief, guarded, seeded
from rollmux_env.validation_errors import format_error, not_one_of, problems
from rollmux_env.workloads import WORKLOADS
from rollmux_env.workloads.options import WorkloadOptions

OwnPolicy = Callable[..., Contender]
"""A user's policy class, or another callable that returns a policy. It is called for each replay, with `seed` if it takes one."""
Target = str | Scenario | Callable[[int], Scenario]
"""Stream to replay: a scenario file or workload by name, a scenario, or a function from seed to scenario."""
Run = Callable[[Callable[[Report], Iterable[tuple[int, Result]]], Sequence[str]], list[Result]]
"""Function that gathers the results of tasks. It gets a function that starts them and reports progress, and their labels."""


@dataclass(frozen=True)
class Replaying:
    """Options of a replay.

    Attributes:
        fidelity: `fluid` to simulate steady periods, `event` to simulate every phase. None means `event` if a dispatch policy, a
            rollout policy or failures are given, else `fluid`.
        dispatch: Name of the dispatch policy of an event replay, or None for `round-robin`.
        rollout_policy: Name of the rollout policy for jobs with a model, or None for `plain`.
        failures: Rates of failures in an event replay, as in `job_h=24,every=10`, or None for no failures.
        check: Whether to assert the invariants after every instant.
        most_phases: Largest number of phases in an event replay, or None for 20 million.
        fleet: Nodes that there are, as in `12+10`, or `load=1.6` for a fleet of the stream's size, as
            `rollmux_env.bench.fleets.nodes_at_load` has it. None for the scenario's own `max_nodes`.

    Raises:
        InputError: The fidelity is unknown, or an option about phases is given for a fluid replay.
    """

    fidelity: Literal["fluid", "event"] | None = None
    dispatch: str | None = None
    rollout_policy: str | None = None
    failures: str | None = None
    check: bool = False
    most_phases: int | None = None
    fleet: str | None = None

    def __post_init__(self) -> None:
        if self.fidelity not in (None, "fluid", "event"):
            raise InputError(f"fidelity: {not_one_of(self.fidelity, ('fluid', 'event'))}")
        options = {"dispatch": self.dispatch, "rollout-policy": self.rollout_policy, "failures": self.failures}
        for option, value in {**options, "max-phases": self.most_phases}.items():
            if value is not None and not self.is_event:
                raise InputError(f"--{option}: a fluid replay runs no single phases")

    @property
    def is_event(self) -> bool:
        """Whether every phase is simulated."""
        of_events = self.dispatch, self.rollout_policy, self.failures
        return self.fidelity == "event" or (self.fidelity is None and any(of_events))


def bench(
    target: Target,
    policies: Sequence[str | OwnPolicy] = ("solo", "rollmux"),
    seeds: int | Iterable[int] = 1,
    *,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int = 1,
    limit_s: float | None = None,
    run: Run | None = None,
    **how: Any,
) -> BenchResult:
    """Compare placement policies on a stream.

    Args:
        target: Path of a scenario file, name of an example or of a workload, a scenario, or a function from seed to scenario.
        policies: Policies to compare, each a name or a class of your own.
        seeds: Number of seeds, starting at 0, or the seeds themselves.
        baseline: Name of the policy that savings are relative to, or None for the first one.
        settings: Options of the workload, such as `{"jobs": 50, "stays": "fixed"}`.
        workers: Number of processes.
        limit_s: Longest that one replay may take, in seconds, or None for no limit. With a limit, replays run in processes of
            their own.
        run: Function that runs the tasks and gathers their results, or None to gather them without showing progress.
        how: Fields of `Replaying`, such as `dispatch="fifo"` or `fleet="12+10"`.

    Raises:
        InputError: An argument is not valid, as for the command `rollmux bench`.
        PlanError: A policy returned a plan that breaks an invariant.
    """
    replaying, numbers = _replaying(how), [*range(seeds)] if isinstance(seeds, int) else [*seeds]
    for name, chosen in (("seeds", numbers), ("policies", policies)):
        if not chosen:
            raise InputError(f"{name}: must be at least one")
    own = {policy.__name__: policy for policy in policies if not isinstance(policy, str)}
    make = partial(_make, own)
    names, left_out = _contenders(list(dict.fromkeys(map(_name, policies))), make, replaying)
    base = baseline or names[0]
    if base not in names:
        raise InputError(f"--baseline: {base} is not among the policies {', '.join(names)}")
    texts = _texts(settings)
    scenarios = {number: _scenario(target, number, texts) for number in numbers}
    if (fleet := replaying.fleet) is not None:
        scenarios = {number: with_fleet(scenario, fleet) for number, scenario in scenarios.items()}
    tasks, phases = _tasks(names, scenarios, replaying)
    gather, labels = run or _gather_silently, [f"{task.spec}, seed {task.seed}" for task in tasks]
    results = gather(lambda report: run_tasks(make, tasks, workers, report, limit_s), labels)
    said = {
        "scenario": _name(target),
        "settings": texts,
        **phases,
        "failures": replaying.failures,
        "left_out": left_out,
        "fleet": fleet,
    }
    return bench_result(results, base, said, scenarios)


def replay(
    target: Target,
    policy: str | OwnPolicy = "rollmux",
    seed: int = 0,
    *,
    settings: Mapping[str, Any] | None = None,
    **how: Any,
) -> RunResult:
    """Replay one stream under one placement policy. Arguments and errors are those of `bench`."""
    return bench(target, [policy], [seed], settings=settings, **how).runs[0]


def sweep(
    target: Target, keys: Mapping[str, Sequence[Any]], *arguments: Any, settings: Mapping[str, Any] | None = None, **more: Any
) -> SweepResult:
    """Compare placement policies on a stream at every combination of values of some keys.

    A key is `fleet`, an option of the workload, such as `slo`, or else a key of the cluster, such as `max_group_size` or
    `rollout.max_nodes`. A number for `slo` applies to all jobs.

    Args:
        target: Stream to replay, as for `bench`.
        keys: Values of each key, as in `{"slo": [1.2, 1.5, 2]}`.
        arguments: Further positional arguments of `bench`.
        settings: Options of the workload that stay fixed.
        more: Further keyword arguments of `bench`.

    Raises:
        InputError: Neither the workload nor the cluster has such a key, or an argument is not valid.
        PlanError: A policy returned a plan that breaks an invariant.
    """
    for key, values in keys.items():
        if len({_text(value) for value in values}) < len(values) or not values:
            raise InputError(f"--sweep {key}: give one value or more, each once")
        if key in (settings or {}):
            raise InputError(f"--sweep {key}: is an option of --set too; give it once")
        if key == "fleet" and more.get("fleet") is not None:
            raise InputError("--sweep fleet: is given by --fleet too; give it once")
        if key.endswith(".max_nodes") and ("fleet" in keys or more.get("fleet") is not None):
            raise InputError(f"--sweep {key}: is what a fleet says; give one of them")
    points = []
    for combination in product(*keys.values()):
        swept = dict(zip(keys, combination, strict=True))
        points.append(SweepPoint(_texts(swept), _bench_at(target, swept, settings, arguments, more)))
    return SweepResult(SWEEP_SCHEMA, tuple(keys), tuple(points))


_OPTIONS = [option.name for option in fields(WorkloadOptions) if option.name != "seed"]


def _bench_at(
    target: Target,
    swept: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    arguments: tuple[Any, ...],
    more: Mapping[str, Any],
) -> BenchResult:
    """Compare the policies at one point of a sweep."""
    if "fleet" in swept:
        swept = dict(swept)
        more = {**more, "fleet": _text(swept.pop("fleet"))}
    own = {key: value for key, value in swept.items() if isinstance(target, str) and target in WORKLOADS and key in _OPTIONS}
    options = [(key, [value, value] if key == "slo" and isinstance(value, int | float) else value) for key, value in own.items()]
    texts = _texts({**(settings or {}), **dict(options)})
    cluster = {key: value for key, value in swept.items() if key not in own}
    if not cluster:
        return bench(target, *arguments, settings=texts, **more)
    benched = bench(partial(_with_cluster_keys, target, texts, cluster), *arguments, **more)
    return replace(benched, scenario=_name(target), settings=texts)


def _with_cluster_keys(target: Target, settings: Mapping[str, str], changes: Mapping[str, Any], seed: int) -> Scenario:
    """Return the target's scenario with other values for some keys of its cluster, such as `migration_s` or `rollout.max_nodes`."""
    scenario, label = (
        _scenario(target, seed, settings),
        "--sweep " + ", ".join(f"{key}={text}" for key, text in _texts(changes).items()),
    )
    if isinstance(target, str) and target not in WORKLOADS:
        file = find_file(target)  # read again, because some fields of its jobs derive from the cluster
        data = read_mapping(file)
        return parse_scenario(data | {"cluster": _set_keys(data["cluster"], changes)}, label, file.parent)
    cluster = _set_keys(scenario.cluster.model_dump(mode="json", by_alias=True, exclude_unset=True), changes)
    try:
        return Scenario.model_validate({"version": scenario.version, "cluster": cluster, "jobs": scenario.jobs})
    except ValidationError as error:
        raise InputError(f"{label}: {format_error(problems(error)[0], Scenario)}") from None


def _set_keys(cluster: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = deepcopy(dict(cluster))
    for key, value in changes.items():
        *path, last = key.split(".")
        inner: Any = changed
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or (not path and last not in Cluster.model_fields):
            known = ["fleet", *_OPTIONS, *(name for name in Cluster.model_fields if name != "by_name")]
            raise InputError(f"--sweep {key}: neither an option of the workload nor a key of its cluster{did_you_mean(key, known)}")
        inner[last] = value
    return changed


def _replaying(how: Mapping[str, Any]) -> Replaying:
    known = [one.name for one in fields(Replaying)]
    for name in how:
        if name not in known:
            raise InputError(f"bench: there is no option {name}; it has {', '.join(known)}{did_you_mean(name, known)}")
    return Replaying(**how)


def make_failures(text: str | None) -> Failures | None:
    """Parse the text of `--failures` into the failures of an event replay.

    Raises:
        InputError: The text has another form, or an option is unknown or out of range.
    """
    return None if text is None else make_with("--failures", "it", Failures, text.split(","))


def _tasks(names: Sequence[str], scenarios: Mapping[int, Scenario], how: Replaying) -> tuple[list[Task], dict[str, str | None]]:
    """Return one task for each scenario and policy, and the fields of the result that describe how phases are replayed."""
    rollouts = how.rollout_policy or "plain"
    inside = make_at(rollouts, "replay")
    order = migrating(how.dispatch or "round-robin", inside)
    rule = make_dispatch(order) if how.is_event else None
    dying = make_failures(how.failures)
    check_sizes(rollouts, scenarios.values())
    tasks = [
        Task(name, number, scenario, rule, how.check, inside, how.most_phases, dying)
        for number, scenario in scenarios.items()
        for name in names
    ]
    if rule is None:
        return tasks, {"fidelity": "fluid", "dispatch": None, "rollout_policy": None}
    return tasks, {"fidelity": "event", "dispatch": order, "rollout_policy": rollouts}


def _gather_silently(report: Callable[[Report], Iterable[tuple[int, Result]]], names: Sequence[str]) -> list[Result]:
    return [result for _, result in sorted(report(lambda *progress: None), key=lambda one: one[0])]


def _contenders(names: list[str], make: Callable[[str, int], Contender], how: Replaying) -> tuple[list[str], dict[str, str]]:
    """Return the names of the policies that support this kind of replay, and for each other one the reason why it is left out."""
    able = [name for name in names if can_replay(make(name, 0), how.is_event)]
    if not able:
        raise InputError(f"event replay: {names[0]} is {FLUID_ONLY}")
    return able, {name: FLUID_ONLY for name in names if name not in able}


def _make(own: Mapping[str, OwnPolicy], name: str, seed: int) -> Contender:
    if name not in own:
        return make_policy(name, seed)
    return checked(f"policy {name}", name, make_with(f"policy {name}", name, own[name], (), seed))


def _name(named: object) -> str:
    return named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)


def _texts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: _text(value) for key, value in (settings or {}).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scenario(target: Target, seed: int, settings: Mapping[str, str]) -> Scenario:
    if settings and not isinstance(target, str):
        raise InputError("settings: only a workload by name has options")
    if isinstance(target, Scenario):
        return target
    if callable(target):
        with seeded(seed):
            scenario: object = guarded(target, f"the function {_name(target)}")(seed)
        if not isinstance(scenario, Scenario):
            raise InputError(f"the function {_name(target)} returned {brief(scenario)}, which is no Scenario")
        return scenario
    return find_scenario(target, seed, [f"{key}={text}" for key, text in settings.items()])


def swept(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as `slo=1.2,1.5,2` or `slo=[1,2],[1.5,2]` into the values of each key.

    Raises:
        InputError: A text has another form.
    """
    values = {}
    for key, listed in parse_pairs("--sweep", texts, "key=value,value,..."):
        parsed = parse_value(f"[{listed}]")
        values[key] = parsed if isinstance(parsed, list) else listed.split(",")
    return values
