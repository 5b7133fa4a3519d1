"""Whatever a file holds, loading it gives a scenario or one line that begins with its path, soon and without much memory."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.reading import merge_defaults, read_mapping
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from tests.oracle.draw import examples
from tests.rollmux_env.test_scenario import EXAMPLES, ROOT, small

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e-320, 1e300, 10**18, -(10**30), 10**400, float("nan"), float("inf"), -float("inf"),
    "", "x", "1", "nan", "a\nb", "\x00", "\x1b[31m", "\ud800", "é" * 50, "x" * 10**5, "../../etc/passwd", "{problem}", "%s",
    [], [[]], [None], {}, {"": None}, {"x": {"y": {"z": []}}}, {"iteration": 1}, {"2": 1}, [{"iteration": 3}, {"iteration": 1}],
]  # fmt: skip
TEXT_JUNK = [
    "\n", "\t", ": ", "- ", "? ", "[", "]", "{", "}", "&a ", "*a", "*a ", "<<: *a\n", "!!binary ", "!!set ", "!!timestamp ", "!x ",
    "|\n", ">\n", "'", '"', "#", "%YAML 1.1\n", "---\n", "...\n", "\x00", "\x85", "\u2028", "\ufeff", "\ud7ff", "\\", '"\\x"', "@",
    "2001-12-14t21:59:43.10-05:00", "0x", "0o8", "1e999", ".nan", "-.inf", "~", "9" * 5000, "k" * 5000, "version: 1\n",
    "jobs: []\n", "`",
    "? {a: b}\n", "[" * 500, "{a: " * 500, "- " * 500, "defaults: &d {rollout: *d}\n", "a: &a [*a, *a]\n",
]  # fmt: skip


def check(path: Path) -> Scenario | None:
    """Load the file; where it is refused, check how."""
    try:
        return load_scenario(path)
    except InputError as error:
        message = str(error)
        assert message.startswith(f"{path}: ") and message.isprintable()
        assert len(message) - len(str(path)) <= 310
        return None


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))


def write_yaml(path: Path, data: Any) -> None:
    from ruamel.yaml import YAML

    with path.open("w", encoding="utf-8", errors="surrogatepass") as file:
        YAML(typ="safe", pure=True).dump(data, file)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mutate(data: Any, rng: random.Random) -> Any:
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        container, key = rng.choice(places(data) or [(data, "version")])
        kind = rng.randrange(4)
        junk = copy.deepcopy(rng.choice(JUNK))
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[rng.choice(["colour", "a\nb", "x" * 5000, "é", "id", "slo", "defaults", "0", "\ud800"])] = junk
        elif kind == 2:
            _, other = rng.choice(places(data))
            container[key] = copy.deepcopy(rng.choice([data.get("jobs"), data.get("cluster"), other]))
        else:
            container[key] = junk
    return data


def bases() -> list[dict[str, Any]]:
    data = [read_mapping(path) for path in EXAMPLES]
    return [small(), *data]


def test_mutated_trees_load_or_are_refused_in_one_line(tmp_path: Path) -> None:
    rng = random.Random(1)
    loaded = 0
    for k in range(500):
        path = tmp_path / "f.json"
        write_json(path, mutate(rng.choice(bases()) if k % 20 == 0 else BASES[k % len(BASES)], rng))
        loaded += check(path) is not None
    assert 20 < loaded < 350  # the mutations neither all miss nor all hit


def test_json_and_yaml_agree_on_mutated_trees(tmp_path: Path) -> None:
    rng = random.Random(2)
    for _ in range(120):
        data = mutate(small(), rng)
        write_json(tmp_path / "f.json", data)
        (tmp_path / "f.yaml").write_text(json.dumps(data))  # JSON is YAML
        one, other = check(tmp_path / "f.json"), check(tmp_path / "f.yaml")
        assert one == other


BASES = bases()
TEXTS = [path.read_text() for path in EXAMPLES] + [json.dumps(small())]


def test_mutated_text_loads_or_is_refused_in_one_line(tmp_path: Path) -> None:
    rng = random.Random(3)
    for k in range(250):
        text = rng.choice(TEXTS)
        for _ in range(rng.choice([1, 2, 4])):
            a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            kind = rng.randrange(5)
            if kind == 0:
                text = text[:a]
            elif kind == 1:
                text = text[:a] + text[min(b, a + 40) :]
            elif kind == 2:
                text = text[:b] + text[a : min(b, a + 200)] + text[b:]  # keys given twice
            else:
                text = text[:a] + rng.choice(TEXT_JUNK) + text[a:]
        path = tmp_path / ("f.json" if k % 7 == 0 else "f.yaml")
        path.write_text(text, encoding="utf-8")
        check(path)


def test_binary_junk_is_refused(tmp_path: Path) -> None:
    rng = random.Random(4)
    for k in range(300):
        path = tmp_path / ("f.json" if k % 2 else "f.yaml")
        junk = rng.randbytes(rng.randrange(1, 300))
        path.write_bytes(junk if k % 3 else bytes(byte & 0x7F for byte in junk))
        assert check(path) is None


BOMBS: dict[str, Callable[[], str]] = {
    "aliases": lambda: "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 60)),
    "aliases in jobs": lambda: (
        "x: &a0 {id: a}\n" + "".join(f"x{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 60)) + "jobs: *a59\n"
    ),
    "aliases in defaults": lambda: (
        "x: &a0 {id: a}\n"
        + "".join(f"x{n}: &a{n} {{{','.join(f'k{m}: *a{n - 1}' for m in range(10))}}}\n" for n in range(1, 60))
        + "defaults: *a59\njobs: [*a59, *a59]\n"
    ),
    "merge keys": lambda: (
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 60))
    ),
    "explicit merge keys": lambda: (
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{!!merge <<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 60))
    ),
    "a key given twice with a bomb": lambda: (
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 60)) + "a1: *a59\n"
    ),
    "flow lists": lambda: "[" * 50_000,
    "flow mappings": lambda: "{a: " * 50_000,
    "block lists": lambda: "- " * 50_000,
    "keys": lambda: "? " * 50_000,
    "indents": lambda: "".join(" " * n + "a:\n" for n in range(500)),
    "quotes": lambda: "'" * 200_000,
    "comments": lambda: "#" * 200_000,
    "anchors": lambda: "&a " * 50_000,
    "a long number": lambda: "version: " + "9" * 200_000,
    "a long hexadecimal": lambda: "version: 0x" + "f" * 200_000,
    "a long float": lambda: "version: 0." + "1" * 200_000 + "e-" + "9" * 1000,
    "a long word": lambda: "x" * 200_000 + ": 1",
    "a recursive mapping": lambda: "&a {jobs: [*a], defaults: *a}",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_bombs_are_refused(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bomb.{suffix}"
    path.write_text(BOMBS[name]())
    assert check(path) is None


def test_deep_json_is_refused_or_ignored(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    for depth in (10, 100, 400, 900, 2000, 100_000):
        nest = '{"rollout":' * depth + "1" + "}" * depth
        path.write_text(f'{{"version": 1, "defaults": {nest}, "jobs": [{nest}, {"[" * depth + "]" * depth}]}}')
        assert check(path) is None


def test_what_loads_is_the_same_from_yaml_and_from_json(tmp_path: Path) -> None:
    for number, base in enumerate(
        [*BASES, *(read_mapping(p)["scenario"] for p in sorted((ROOT / "tests/contract").glob("*.json")))]
    ):
        write_json(tmp_path / f"{number}.json", base)
        write_yaml(tmp_path / f"{number}.yaml", base)
        one, other = load_scenario(tmp_path / f"{number}.json"), load_scenario(tmp_path / f"{number}.yaml")
        assert one == other and one.sha256 == other.sha256 and one.canonical_json() == other.canonical_json()


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


def leaf(value: Any, path: tuple[str, ...]) -> Any:
    """The value at a path, or Ellipsis where there is none."""
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return ...
        value = value[part]
    return value


def paths(value: Any) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {()}
    if isinstance(value, dict):
        for key, below in value.items():
            found |= {(key, *path) for path in paths(below)}
    return found


@examples(200)
@given(MAPPINGS, MAPPINGS)
def test_defaults_merge_key_by_key_and_level_by_level(defaults: dict[str, Any], job: dict[str, Any]) -> None:
    before = copy.deepcopy((defaults, job))
    merged = merge_defaults({"defaults": defaults, "jobs": [job]})["jobs"][0]
    assert (defaults, job) == before  # other jobs see the same defaults
    for path in paths(defaults) | paths(job):
        own, default, found = leaf(job, path), leaf(defaults, path), leaf(merged, path)
        if own is not ... and not isinstance(own, dict):
            assert found == own and type(found) is type(own)
        elif own is ... and default is not ... and all(isinstance(leaf(job, path[:k]), dict | type(...)) for k in range(len(path))):
            assert found == default
    assert merge_defaults({"defaults": defaults, "jobs": [merged]})["jobs"][0] == merged
    assert merge_defaults({"defaults": {}, "jobs": [job]})["jobs"][0] == job
    assert "defaults" not in merge_defaults({"defaults": defaults, "jobs": []})


NUMBERS = st.floats(0.001, 1e6) | st.integers(1, 10**6)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Files that load."""
    data = small()
    data["jobs"] = []
    for k in range(draw(st.integers(1, 3))):
        job: dict[str, Any] = {
            "id": f"j{k}",
            "arrival_s": draw(NUMBERS),
            "slo": 1 + draw(NUMBERS),
            "rollout": {"worst_case_s": draw(NUMBERS), "nodes": draw(st.integers(1, 4))},
            "training": {
                "worst_case_s": draw(NUMBERS),
                "by_nodes": {str(n): draw(NUMBERS) for n in draw(st.sets(st.integers(2, 30)))},
            },
        }
        job[draw(st.sampled_from(["iterations", "duration_s"]))] = draw(st.integers(1, 1000))
        data["jobs"].append(job)
    return data


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same tree with the keys of its mappings in another order, and whole floats for some integers."""
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(below, rng) for key, below in items}
    if isinstance(value, list):
        return [shuffled(below, rng) for below in value]
    return float(value) if isinstance(value, int) and rng.random() < 0.5 else value


@examples(100)
@given(files(), st.integers(0, 10**6))
def test_the_hash_ignores_the_order_of_keys_and_the_spelling_of_numbers(data: dict[str, Any], seed: int) -> None:
    scenario = parse_scenario(data)
    again = parse_scenario(shuffled(data, random.Random(seed)))
    canonical = parse_scenario(json.loads(scenario.canonical_json()))
    assert scenario == again == canonical
    assert scenario.sha256 == again.sha256 == canonical.sha256


@examples(60)
@given(files())
def test_writing_a_jobs_keys_under_defaults_changes_nothing(data: dict[str, Any]) -> None:
    plain = parse_scenario(data)
    data["jobs"] = data["jobs"][:1]
    job = data["jobs"][0]
    moved = {**data, "defaults": {key: value for key, value in job.items() if key != "id"}, "jobs": [{"id": job["id"]}]}
    assert parse_scenario(moved).jobs == plain.jobs[:1]
