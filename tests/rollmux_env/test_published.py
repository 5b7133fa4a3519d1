"""Files of published figures: every one is read, and a broken one gives one clear line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from rollmux_env.bench.suites import SUITES
from rollmux_env.errors import InputError
from rollmux_env.keys.assumptions import OURS
from rollmux_env.published import FOLDER, Source, source
from rollmux_env.timing.calibration import PHYSICAL, ROLLMUX
from rollmux_env.timing.hardware import GPUS
from rollmux_env.workloads.catalogue import PHASES_S


class Cells(NamedTuple):
    seconds: float
    gpus: int | None = None


def write(path: Path, text: str) -> Source:
    path.write_text(text)
    return Source(path)


def test_a_table_is_read_as_it_is_printed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'rows = """\njob      seconds  gpus\n7B math     1.50     8\n7B math    20.25     -\n"""\n')
    assert file.table("rows", Cells) == [("7B math", Cells(1.5, 8)), ("7B math", Cells(20.25))]
    assert file.table("rows", tuple[float, int | None])[1] == ("7B math", (20.25, None))


@pytest.mark.parametrize(
    "text, problem",
    [
        ("rows = 1.5.0", "is not TOML: Expected newline or end of document after a statement (at line 1, column 11)"),
        ("", "rows: is missing"),
        ("rows = 3", "rows: must be text, not 3"),
        ('rows = "job  seconds  nodes\\na  1  2"', "rows: nodes: must be one of seconds, gpus, not 'nodes'"),
        ('rows = "job  seconds  gpus\\na  1"', "rows: a: has 1 cells beside its name, not 2"),
        ('rows = "job  seconds  gpus\\na  1  2  3"', "rows: a: has 3 cells beside its name, not 2"),
        ('rows = "job  seconds  gpus\\na  1,5  2"', "rows.a.seconds: must be a number, not '1,5'"),
        ('rows = "job  seconds  gpus\\na  1.5  2.5"', "rows.a.gpus: must be a whole number, not '2.5'"),
        ('rows = "job  seconds  gpus\\na  -  2"', "rows.a.seconds: has no value (null); it must be a number"),
    ],
)
def test_a_broken_file_gives_one_clear_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(InputError) as error:
        write(path, text).table("rows", Cells)
    assert str(error.value) == f"{path}: {problem}"


def test_values_have_a_type_and_may_have_a_default(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'figures = { hex = 1.36 }\nnumbers = [1, 2, "x"]\n')
    assert file.value("figures", dict[str, float]) == {"hex": 1.36}
    assert file.value("notes", tuple[str, ...], ()) == ()
    with pytest.raises(InputError, match=re.escape("a.toml: numbers[2]: must be a whole number, not 'x'")):
        file.value("numbers", tuple[int, ...])
    with pytest.raises(InputError, match=re.escape("b.toml: No such file or directory")):
        Source(tmp_path / "b.toml")


def test_every_file_begins_with_its_source() -> None:
    for path in FOLDER.glob("*.toml"):
        assert path.read_text().startswith("# ") and Source(path)


def test_every_source_is_told_what_system_its_gpus_are_of() -> None:
    assert {name for name, gpu in GPUS.items() if gpu.calibration is ROLLMUX} == {"H20", "H800"}
    assert all(gpu.calibration in (ROLLMUX, PHYSICAL) for gpu in GPUS.values())


def test_figures_are_where_a_reader_of_the_paper_looks_for_them() -> None:
    assert PHASES_S["7B-8k"] == (133.8, 112.8, 159.6, 98.2)
    assert SUITES["production"].paper["fixed stays", "rollmux", "saving"] == 1.84
    assert SUITES["sensitivity"].paper["SLO 1.5", "rollmux", "penalised cost / optimal"] == 1.07
    assert source("nemo_rl").value("name", str) == "NeMo-RL"
    observed = SUITES["mixed"].differences[-1]
    assert SUITES["production"].differences[2] == f"{observed} The paper's 100% was observed."


def test_sentences_about_our_own_constants_are_true() -> None:
    assert f"takes {OURS.asynchrony.sync:.0%} of a job's rollout and training" in SUITES["asynchrony"].differences[1]
