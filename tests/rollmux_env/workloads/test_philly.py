"""The Philly loader: selection, and one line for every file that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from tests.oracle.draw import examples

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster"
TRACE = f"""{HEADER}
2017-12-01 18:39:32,7200.0,1,7200.0,6c71a0
2017-12-01 12:00:00,3600,8,28800.0,e13805
2017-12-01 12:30:00,1800,1,1800.0,6c71a0
2017-12-01 13:00:00,0,1,0.0,6c71a0
2017-12-02 12:00:00,36000.5,1,36000.5,6c71a0
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(path: Path, **options: object) -> Scenario:
    return make_workload("philly", WorkloadOptions(csv=path, stays="fixed", **options))  # type: ignore[arg-type]


def taken(scenario: Scenario) -> list[tuple[float, float | None]]:
    return [(job.arrival_s, job.duration_s) for job in scenario.jobs]


def test_rows_become_jobs_in_order_of_submission_from_zero(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE)
    assert taken(load(path)) == [(0, 3600), (1800, 1800), (23972, 7200), (86400, 36000.5)]


@pytest.mark.parametrize(
    ("options", "durations_s"),
    [
        ({"virtual_cluster": "6c71a0"}, [1800, 7200, 36000.5]),
        ({"virtual_cluster": "e13805"}, [3600]),
        ({"jobs": 2}, [3600, 1800]),
        ({"window_h": 1.0}, [3600, 1800]),
        ({"window_start_h": 0.5}, [1800, 7200, 36000.5]),
        ({"window_start_h": 0.5, "window_h": 12.0}, [1800, 7200]),
        ({"min_stay_h": 1.0}, [3600, 7200, 36000.5]),
        ({"max_stay_h": 1.0}, [3600, 1800]),
        ({"min_stay_h": 1.0, "max_stay_h": 2.0}, [3600, 7200]),
    ],
)
def test_options_select_rows(tmp_path: Path, options: dict[str, object], durations_s: list[float]) -> None:
    scenario = load(write(tmp_path, TRACE), **options)
    assert [job.duration_s for job in scenario.jobs] == durations_s
    assert scenario.jobs[0].arrival_s == 0


def test_phases_come_from_the_profile_and_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE)
    assert load(path) == load(path)
    assert load(path, seed=1) != load(path)
    assert all(job.id.startswith("RH-") for job in load(path, profile="rollout-heavy").jobs)
    with pytest.raises(InputError, match=r"^profile: must be one of mixed, balanced, .*, not 'RH'$"):
        load(path, profile="RH")


def test_iterations_of_a_row(tmp_path: Path) -> None:
    scenario = make_workload("philly", WorkloadOptions(csv=write(tmp_path, TRACE)))
    fixed = load(tmp_path / "trace.csv")
    for job, same in zip(scenario.jobs, fixed.jobs, strict=True):
        assert same.duration_s is not None
        assert job.iterations == max(1, round(same.duration_s / job.solo_s))


def test_forms_of_a_file(tmp_path: Path) -> None:
    """A byte order mark, other orders of columns, seconds for times, offsets, blank lines, Windows line ends, `vc`."""
    expected = [(0, 10), (60, 20)]
    assert taken(load(write(tmp_path, "\ufefftimestamp,duration\n100,10\n160,20\n"))) == expected
    assert taken(load(write(tmp_path, "vc,duration, timestamp\r\na,20,160\r\n\r\na,10,100\r\n"), virtual_cluster="a")) == expected
    assert taken(load(write(tmp_path, "timestamp,duration\n100,10\n,\n160,20\n , \n"))) == expected
    text = "duration,timestamp\n20,2024-01-01T01:01:00+01:00\n10,2024-01-01 00:00:00\n"
    assert taken(load(write(tmp_path, text))) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: the column timestamp is missing; it has none; "),
        (
            "timestamp,num_gpus\n1,1\n",
            "line 1: the column duration is missing; it has timestamp, num_gpus; --set columns='{duration: NAME}' names another",
        ),
        ("timestamp;duration\n1;1\n", "line 1: the column timestamp is missing; columns are separated by commas, not by ';'"),
        ("timestamp\tduration\n", "line 1: the column timestamp is missing; columns are separated by commas, not by '\\t'"),
        (",".join(f"{n:0300}" for n in range(12)) + "\n", "line 1: the column timestamp is missing; it has 0000"),
        ("duration\n1\n", "line 1: the column timestamp is missing"),
        ("timestamp,duration,duration\n1,1,1\n", "line 1: the column 'duration' is there twice"),
        (f"{HEADER}\n", "no row is left by the options"),
        (f"{HEADER}\n2017-12-01 18:39:32,0,1,1,a\n", "no row is left by the options"),
        (f"{HEADER}\n1,1,1,1,a\nyesterday,1,1,1,a\n", "line 3: timestamp: must be a time such as"),
        (f"{HEADER}\n2017-13-01 18:39:32,1,1,1,a\n", "line 2: timestamp: must be a time such as"),
        (f"{HEADER}\n,1,1,1,a\n", "line 2: timestamp: must be a time such as"),
        (f"{HEADER}\nnan,1,1,1,a\n", "line 2: timestamp: must be a finite time, not 'nan'"),
        (f"{HEADER}\n1e300,1,1,1,a\n", "line 2: timestamp: must be a finite time, not '1e300'"),
        (f"{HEADER}\n1,1,1,1,a\n\n2,nan,1,1,a\n", "line 4: duration: must be a number of seconds"),
        (f"{HEADER}\n1,-1,1,1,a\n", "line 2: duration: must be a number of seconds from 0 to 1e9, not '-1'"),
        (f"{HEADER}\n1,inf,1,1,a\n", "line 2: duration: must be a number of seconds"),
        (f"{HEADER}\n1,two hours,1,1,a\n", "line 2: duration: must be a number of seconds from 0 to 1e9, not 'two hours'"),
        (f"{HEADER}\n1,,1,1,a\n", "line 2: duration: must be a number of seconds"),
        (f"{HEADER}\n1\n", "line 2: duration: is missing"),
        (f'{HEADER}\n1,"2\n', "line 2: is not CSV: unexpected end of data"),
        (f"{HEADER}\n1,{'2' * 200_000}\n", "line 2: is not CSV: field larger than field limit"),
        (b"timestamp,duration\n1,\xff\n", "line 2: is not a text file (UTF-8)"),
        (bytes(range(256)), "line 2: is not a text file (UTF-8)"),
        (b"\0" * 64, "line 1: the column timestamp is missing"),
        ("timestamp,duration\n1,5\n".encode("utf-16"), "is UTF-16, not UTF-8: save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_virtual_cluster_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has none called 'nobody'; it has 6c71a0 \(4 rows\), e13805 \(1 rows\)"):
        load(write(tmp_path, TRACE), virtual_cluster="nobody")
    with pytest.raises(InputError, match="line 1: the column cluster or vc is missing"):
        load(write(tmp_path, "timestamp,duration\n1,1\n"), virtual_cluster="a")
    with pytest.raises(InputError, match="line 2: cluster: is missing"):
        load(write(tmp_path, "timestamp,duration,cluster\n1,1\n"), virtual_cluster="a")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, name in ((tmp_path / "no.csv", f"{tmp_path}/no.csv"), (tmp_path, str(tmp_path)), (Path("a\0\nb"), r"a\x00\nb")):
        with pytest.raises(InputError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{name}: ")
    with pytest.raises(InputError, match="csv: the workload philly needs a trace file"):
        make_workload("philly")


@given(st.one_of(st.binary(max_size=200), st.text("0123456789-:,\n\"' .eT", max_size=120).map(lambda t: f"{HEADER}\n{t}".encode())))
@examples(150)
def test_no_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), data)
    try:
        load(path)
    except InputError as error:
        assert "\n" not in str(error)


HELIOS = """job_id,user,gpu_num,state,submit_time,start_time,end_time,duration,vc
1,ann,16,COMPLETED,2020-04-01 00:00:00,2020-04-01 01:00:00,2020-04-01 03:00:00,7200,vc1
2,bob,0,COMPLETED,2020-04-01 00:10:00,2020-04-01 00:10:00,2020-04-01 01:10:00,3600,vc1
3,bob,4,CANCELLED,2020-04-01 00:20:00,,,0,vc1
4,bob,4,FAILED,2020-04-01 00:30:00,2020-04-01 00:40:00,2020-04-01 01:40:00,3600,vc2
"""


@pytest.mark.parametrize(
    "columns",
    [
        "{arrival: submit_time, user: user, gpus: gpu_num}",
        '{"arrival": "submit_time", "user": "user", "gpus": "gpu_num", "start": "start_time", "end": "end_time"}',
    ],
)
def test_other_columns_are_read_by_a_map(tmp_path: Path, columns: str) -> None:
    jobs = load(write(tmp_path, HELIOS), columns=columns).jobs
    assert [(job.arrival_s, job.duration_s, job.user) for job in jobs] == [(0, 7200, "ann"), (1800, 3600, "bob")]
    assert [(job.rollout.nodes, job.training.nodes) for job in jobs] == [(2, 2), (1, 1)]
    assert [job.user for job in load(write(tmp_path, HELIOS), columns=columns, virtual_cluster="vc2").jobs] == ["bob"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("{arrival: submit}", "line 1: the column submit is missing"),
        ("{arival: submit_time}", "columns: there is no key arival; .*; did you mean arrival"),
        ("submit_time", "columns: must be a map such as"),
        ("{end: end_time, duration: duration}", "columns: give duration, or end"),
        ("{arrival: submit_time, gpus: user}", "line 2: user: must be a number of GPUs, not 'ann'"),
    ],
)
def test_columns_that_cannot_be_are_one_line(tmp_path: Path, columns: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        load(write(tmp_path, HELIOS), columns=columns)
    assert "\n" not in str(error.value)


def test_a_job_is_as_wide_as_a_scenario_file_may_say(tmp_path: Path) -> None:
    stream = load(write(tmp_path, "timestamp,duration,n\n0,1000,32768\n"), columns="{gpus: n}")
    assert parse_scenario(json.loads(stream.canonical_json())) == stream and stream.jobs[0].rollout.nodes == 4096
    with pytest.raises(InputError, match="line 2: n: must be a number of GPUs, not '32769'"):
        load(write(tmp_path, "timestamp,duration,n\n0,1000,32769\n"), columns="{gpus: n}")
