"""Files as mappings: YAML by the 1.2 rules, JSON, and what is said of a file that is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollmux_env import reading
from rollmux_env.errors import InputError
from rollmux_env.reading import WIDEST, read_mapping
from rollmux_env.validation_errors import describe, one_line, path_of


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(content: str | bytes, name: str = "f.yaml") -> dict[str, Any]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_mapping(path)

    return read


@pytest.fixture
def refused(tmp_path: Path, read: Any) -> Any:
    def refused(content: str | bytes, name: str = "f.yaml") -> str:
        with pytest.raises(InputError) as caught:
            read(content, name)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / name}: ")
        return message.removeprefix(f"{tmp_path / name}: ")

    return refused


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e3", 1000.0),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E-1", -0.15),
        ("-.Inf", float("-inf")),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("NULL", None),
        *(
            (text, text)
            for text in ("yes", "off", "1_000", "1:30", "2024-01-01", "0b1", "1e", ".", "+", "-0x1", "=", "nan", "tRue")
        ),
        ("'7'", "7"),
        ('"true"', "true"),
        ('"\\u00e9"', "é"),
        ("9" * 400, float("inf")),
    ],
    ids=describe,
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(read: Any, written: str, value: Any) -> None:
    found = read(f"key: {written}")["key"]
    assert found == value and type(found) is type(value)


def test_a_version_directive_does_not_change_the_rules(read: Any) -> None:
    assert read("%YAML 1.1\n---\nkey: yes") == {"key": "yes"}


def test_json_is_yaml_too(read: Any) -> None:
    text = '{"a": [1, 2.5, null, true, "x\\n"], "b": {"2": 60.1}}'
    assert read(text) == read(text, "f.json") == read(text, "f.JSON") == read("\ufeff" + text, "f.json")


def test_anchors_repeat_a_value(read: Any) -> None:
    assert read("a: &x {k: [1]}\nb: *x") == {"a": {"k": [1]}, "b": {"k": [1]}}


MERGES = (
    "line 3: c.'<<': is a merge key of YAML 1.1, which YAML 1.2 does not have: "
    "write the keys out, or put those that jobs share into `defaults`"
)


def test_two_angles_in_quotes_are_a_key_like_others(read: Any) -> None:
    assert read("'<<': 1") == {"<<": 1}


def test_integers_are_exact_as_far_as_they_can_count(read: Any) -> None:
    for name in ("f.yaml", "f.json"):
        assert read('{"a": 999999999999999999}', name)["a"] == 10**18 - 1
        assert read('{"a": 1%s}' % ("0" * 30), name)["a"] == 1e30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# jobs\n", "must hold a mapping, not null"),
        ("[]", "must hold a mapping, not a list"),
        ("just text", "must hold a mapping, not 'just text'"),
        ("a: 1\nb: {c: 1, c: 2}", "line 2: b.c: is given twice"),
        ("- x: 1\n  x: 2", "line 2: [0].x: is given twice"),
        *((f"a: &a {{b: 1}}\nc:\n  {key}: {value}", MERGES) for key in ("<<", "!!merge <<") for value in ("*a", "[*a]")),
        ("{2: 1, 2.0: 1}", "line 1: 2.0: is given twice"),
        ("a: 1\n---\nb: 1", "line 2: a second document starts here; a file holds one"),
        ("a: !!float 1", "line 1: the tag tag:yaml.org,2002:float is not used in this file format"),
        (
            "a: !!python/object:os.system x",
            "line 1: the tag tag:yaml.org,2002:python/object:os.system is not used in this file format",
        ),
        ("a: *b", "line 1: *b stands for nothing that is complete above it"),
        ("a: &b [*b]", "line 1: *b stands for nothing that is complete above it"),
        ("? [1]\n: 2", "line 1: a key must be plain text or a number"),
        ("a: [1", "line 1: "),
        ("a: b: c", "line 1: "),
        ("a:\n\t- 1", "line 2: "),
        ("a: \x00", "unacceptable character #x0000"),
        ("%YAML 9.x\n---\n", "line 1: "),
        ('"\\UFFFFFFFF": 1', "is not YAML: "),
        ("[" * 10**5, "line 1: is nested too deeply"),
        ("- " * 10**4, "line 1: is nested too deeply"),
    ],
    ids=describe,
)
def test_bad_yaml_is_refused_with_its_line(refused: Any, text: str, said: str) -> None:
    message = refused(text)
    assert message.startswith(said) and "\n" not in message and len(message) <= 300


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n "b": }', "line 2: expecting value"),
        ('{"jobs": [{}, {"slo": 1, "slo": 2}]}', "jobs[1].slo: is given twice"),
        ('{"a": {"b": 1}, "a": 2}', "a: is given twice"),
        ('{"a": {"b": 1, "b": 2}, "a": 2}', "a: is given twice"),
        (" \n", "is empty"),
        ("[1]", "must hold a mapping, not a list"),
        ("{'a': 1}", "line 1: expecting property name"),
        ("[" * 10**5, "is nested too deeply"),
        ('{"a":' * 10**5, "is nested too deeply"),
    ],
    ids=describe,
)
def test_bad_json_is_refused(refused: Any, text: str, said: str) -> None:
    assert refused(text, "f.json").startswith(said)


def test_what_is_not_a_text_file_is_refused(refused: Any, tmp_path: Path) -> None:
    assert refused(b"\xff\xfe\x00\x01") == "is UTF-16, not UTF-8: save it as UTF-8"
    for path, said in ((tmp_path, "is a folder, not a regular file"), (tmp_path / "none.yaml", "No such file or directory")):
        with pytest.raises(InputError) as caught:
            read_mapping(path)
        assert str(caught.value) == f"{path}: {said}"


def test_a_strange_file_name_keeps_the_message_on_one_line() -> None:
    with pytest.raises(InputError) as caught:
        read_mapping(Path("a\nb\x1b\x00.yaml"))
    assert str(caught.value).startswith("a\\nb\\x1b\\x00.yaml: ") and str(caught.value).isprintable()


def test_aliases_that_multiply_are_refused(read: Any, refused: Any) -> None:
    levels = ["k0: &a0 x\n", *(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))]
    assert len(read("".join(levels[:5]))) == 5
    assert refused("".join(levels)) == "line 7: aliases repeat more than 200000 values"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a\nb", r"'a\nb'"),
        ("x" * 999, "'" + "x" * 17 + "..." + "x" * 18 + "'"),
        ({1: 2}, "a mapping"),
        ([1], "a list"),
        (-(10**5000), "a number of over 24 digits"),
    ],
    ids=["null", "true", "number", "control", "long", "mapping", "list", "huge"],
)
def test_values_are_described_in_few_printable_characters(value: Any, text: str) -> None:
    assert describe(value) == text


def test_paths_are_written_as_users_write_them() -> None:
    assert path_of(["jobs", 3, "rollout", "worst_case_s"]) == "jobs[3].rollout.worst_case_s"
    assert path_of(["a\nb", "x y"]) == r"'a\nb'.'x y'"


def test_one_line_is_printable_and_short() -> None:
    assert one_line("a\n\u202eb\ud800") == "a\\n\\u202eb\\ud800"
    assert len(one_line("\x00" * 10**6)) == len(one_line("x" * 10**6)) == 300
    assert one_line("x" * 300) == "x" * 300


def test_a_mapping_has_only_so_many_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that is unknown is an error, and millions of errors fill the memory. YAML has fewer here: reading it is slow."""
    for name, most in (("a.json", WIDEST), ("a.yaml", 1000)):
        monkeypatch.setattr(reading, "WIDEST", most)
        keys, path = range(most + 1), tmp_path / name
        path.write_text(json.dumps(dict.fromkeys(keys)) if name == "a.json" else "b:\n" + "".join(f"  {key}:\n" for key in keys))
        with pytest.raises(InputError, match=rf"{name}: .*holds more than {most} keys$"):
            read_mapping(path)
