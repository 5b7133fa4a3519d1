"""Job files: what is read, and what is refused in one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.coordinator.profiles import profile_key
from runtime.jobs.file import load_cluster, load_jobs
from runtime.jobs.spec import CheckpointSpec, job_of

LONG = "x" * 300  # longer than a name of a file may be
GOOD = """
version: 1
defaults: {slo: 1.5, iterations: 3, algorithm: {learning_rate: 2e-3}}
jobs:
  - {id: a, task: echo}
  - {id: b, task: {name: jsonl, file: data.jsonl}, model: {layers: 2}, algorithm: {group_size: 4}}
  - {id: c, class: "own:Job", options: {seconds: 1}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (tmp_path / "own.py").write_text("raise RuntimeError('imported by a check')\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "broken" / "part.py").write_text("")
    (tmp_path / "jobs.yaml").write_text(GOOD)
    return tmp_path


def test_a_job_file_is_read_with_defaults_under_every_job(folder: Path) -> None:
    jobs: dict[str, Any] = {job.id: job for job in load_jobs(folder / "jobs.yaml").jobs}
    assert jobs["a"].task.name == "echo"
    assert (jobs["a"].model.name, jobs["a"].rollout.engine, jobs["a"].arrival_s) == ("tiny", "auto", 0.0)
    assert (jobs["b"].algorithm.learning_rate, jobs["b"].algorithm.group_size, jobs["b"].model.layers) == (2e-3, 4, 2)
    assert all(job.slo == 1.5 for job in jobs.values())


def test_files_and_modules_are_those_of_the_job_files_folder_and_are_not_imported_to_be_checked(folder: Path) -> None:
    own: Any = load_jobs(folder / "jobs.yaml").jobs[2]
    assert own.folder == str(folder)
    assert (own.job_class, own.options) == ("own:Job", {"seconds": 1})
    assert own.path("data.jsonl") == folder / "data.jsonl"


@pytest.mark.parametrize("named", ["broken.part:Job", "spaces.deep.part:Job", "json.decoder:JSONDecoder", "os.path:join"])
def test_packages_around_a_module_are_not_imported_to_be_checked(folder: Path, named: str) -> None:
    (folder / "spaces" / "deep").mkdir(parents=True)
    (folder / "spaces" / "deep" / "part.py").write_text("1 / 0\n")
    (folder / "jobs.yaml").write_text(GOOD.replace("own:Job", named))
    before = {*sys.modules}
    own: Any = load_jobs(folder / "jobs.yaml").jobs[2]
    assert own.job_class == named
    assert not {name.partition(".")[0] for name in {*sys.modules} - before} & {"broken", "spaces", "own"}
    assert str(folder) not in sys.path


def test_a_profile_is_known_by_the_text_of_the_package_around_the_jobs_module(folder: Path) -> None:
    (folder / "jobs.yaml").write_text(GOOD.replace("own:Job", "broken.part:Job"))
    spec = load_jobs(folder / "jobs.yaml").jobs[2]
    keys = [profile_key(spec, ())]
    for name in ("part.py", "__init__.py", "helper.py"):
        (folder / "broken" / name).write_text(f"'another {name}'\n")
        keys.append(profile_key(spec, ()))
    assert len({*keys}) == 4 and "broken" not in sys.modules
    assert profile_key(spec.model_copy(update={"movable": False}), ()) == keys[-1]
    seldom, never = (
        spec.model_copy(update={"checkpoint": CheckpointSpec.model_validate({"every": every})}) for every in (9, "none")
    )
    assert profile_key(seldom, ()) == keys[-1] != profile_key(never, ())  # one without checkpoints may have to stay


@pytest.mark.parametrize(
    ("given", "every", "keep"),
    [
        ("", "auto", 2),
        ("checkpoint: none,", "none", 2),
        ("checkpoint: null,", "none", 2),
        ("checkpoint: {every: 10, keep: 5},", 10, 5),
    ],
)
def test_checkpoints_are_usual_seldom_or_none(folder: Path, given: str, every: object, keep: int) -> None:
    (folder / "jobs.yaml").write_text(GOOD.replace("id: a,", f"id: a, {given}"))
    jobs: Any = load_jobs(folder / "jobs.yaml").jobs
    job, usual, _ = jobs
    assert (job.checkpoint.every, job.checkpoint.keep, job.checkpoint.is_wanted) == (every, keep, every != "none")
    assert job_of(job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)) == job
    assert (usual.checkpoint.every, usual.checkpoint.keep) == ("auto", 2)


def test_a_job_survives_being_written_and_read(folder: Path) -> None:
    for job in load_jobs(folder / "jobs.yaml").jobs:
        assert job_of(job.model_dump(by_alias=True, exclude_unset=True)) == job


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("version: 1", "version: 2"), "version: must be 1, the only version of this file format, not 2"),
        (("id: b", "id: a"), "jobs[1].id: 'a' is also the id of jobs[0]"),
        (("id: a", "id: 1"), "jobs[0].id: must be text, not the number 1: quote it"),
        (("id: a", 'id: ".."'), "jobs[0].id: must not be '..', which a file system takes for a folder"),
        (
            ("task: echo", "task: ecko"),
            "jobs[0].task.name: must be one of echo, count, long-tail, jsonl, or module:Class of your own, not 'ecko'; did",
        ),
        (
            ("id: a,", "id: a, checkpoint: {every: 0},"),
            "jobs[0].checkpoint.every: must be a whole number of iterations from 1, auto or",
        ),
        (("id: a,", "id: a, checkpoint: {keep: 0},"), "jobs[0].checkpoint.keep: must be at least 1, not 0"),
        (("id: a,", "id: a, checkpoint: often,"), "jobs[0].checkpoint: must be a mapping, not 'often'"),
        (("task: echo", "task: 3"), "jobs[0].task: must be a mapping, not 3"),
        (("task: echo", "task: 'a:b c'"), "jobs[0].task: must be module:Name, not 'a:b c'"),
        (("task: echo", "taks: echo"), "jobs[0].taks: is not a key of this file format"),
        (("task: echo", "slo: 2"), "jobs[0]: needs exactly one of task, class, attach and command; none is given"),
        (("file: data.jsonl", "reward: 'a:b'"), "jobs[1].task.file: is missing; the task jsonl reads one"),
        (("data.jsonl", "none.jsonl"), "jobs[1].task: {folder}/none.jsonl: No such file or directory"),
        (("own:Job", "absent:Job"), "jobs[2].class: there is no module 'absent' in {folder}, or installed"),
        (("slo: 1.5", "slo: 0.5"), "jobs[0].slo: must be at least 1, not 0.5 (set by defaults)"),
        (
            ("learning_rate: 2e-3", "minibatches: 3"),
            "jobs[0].algorithm.minibatches: must divide prompts_per_iteration, which is 8, not 3",
        ),
        (("layers: 2", "hidden_size: 100"), "jobs[1].model.hidden_size: must be a multiple of 32, not 100"),
        (("layers: 2", "name: /nowhere"), "jobs[1].model: /nowhere: there is no such folder; a model is `tiny` or a Hugging Face"),
        (("layers: 2", "name: x, layers: 2"), "jobs[1].model.layers: is a size of the model tiny; 'x' has its own"),
        (
            ("options: {seconds: 1}", "model: tiny"),
            "jobs[2].model: is a key of jobs with task, not with class",
        ),
        (("id: a,", "id: a, options: {x: 1},"), "jobs[0].options: is a key of jobs with class, not with task"),
        (("id: a,", "id: a, rollout: {engine: vlm},"), "jobs[0].rollout.engine: must be 'auto', 'vllm' or 'torch', not "),
        (("data.jsonl", "~no-such-user/a.jsonl"), "jobs[1].task: {folder}/~no-such-user/a.jsonl: No such file or directory"),
        (("layers: 2", "name: ~no-such-user/a"), "jobs[1].model: {folder}/~no-such-user/a: there is no such folder"),
        (("id: a,", "id: a, sync: {topology: ring},"), "jobs[0].sync.topology: must be 'aware' or 'flat', not 'ring'"),
        (
            ("options: {seconds: 1}", "sync: {topology: flat}"),
            "jobs[2].sync: is a key of jobs with task, not with class",
        ),
        (("id: a,", "id: a, folder: none,"), "jobs[0].folder: {folder}/none: there is no such folder"),
        (("id: a,", 'id: a, folder: "n\\0",'), "jobs[0].folder: {folder}/n\\x00: there is no such folder"),
        (("id: a,", f"id: a, folder: {LONG},"), f"jobs[0].folder: {{folder}}/{LONG}: File name too long"),
        (("layers: 2", f"name: /{LONG}"), f"jobs[1].model: /{LONG}: File name too long"),
        (("own:Job", "broken.absent:Job"), "jobs[2].class: there is no module 'broken.absent' in {folder}, or installed"),
        (("id: a,", "id: a, algorithm: {temperature: 5},"), "jobs[0].algorithm.temperature: must be at most 2, not 5"),
        (("id: a,", "id: a, algorithm: {temperature: 1e-3},"), "jobs[0].algorithm.temperature: must be at least 0.01, not 0.001"),
        (("id: a,", "id: a, rollout: {eta: 1.2},"), "jobs[0].rollout.eta: goes with the policy tail-batching"),
        (
            ("id: a,", "id: a, rollout: {policy: tail-batching, eta: 1},"),
            "jobs[0].rollout.eta: must be above 1, not 1",
        ),
        (
            ("id: a,", "id: a, rewards: {timeout: 0},"),
            "jobs[0].rewards.timeout: must be seconds above 0, 'adaptive' or 'none', not 0",
        ),
        (
            ("id: a,", "id: a, rewards: {timeout: soon},"),
            "jobs[0].rewards.timeout: must be seconds above 0, 'adaptive' or 'none', not",
        ),
        (("id: a,", "id: a, rewards: {correct: 2},"), "jobs[0].rewards.correct: goes with the timeout adaptive"),
        (("id: a,", "id: a, rewards: {workers: 0},"), "jobs[0].rewards.workers: must be at least 1, not 0"),
        (
            ("id: a,", "id: a, rewards: {workers: 2, processes: 2},"),
            "jobs[0].rewards.processes: are beside each engine; with workers there are none",
        ),
        (
            ("id: a,", "id: a, rewards: {workers: 2},"),
            "jobs[0].rewards.workers: are of no use to the task 'echo', whose rewards take microseconds beside the engine",
        ),
        (("id: a,", "id: a, evaluation: {file: data.jsonl},"), "jobs[0].evaluation: goes with the task jsonl, not with 'echo'"),
        (("id: b,", "id: b, evaluation: {file: x.jsonl},"), "jobs[1].evaluation: {folder}/x.jsonl: No such file or directory"),
        (("id: b,", "id: b, evaluation: {file: data.jsonl, every: 0},"), "jobs[1].evaluation.every: must be at least 1, not 0"),
        (
            ("options: {seconds: 1}", "evaluation: {file: data.jsonl}"),
            "jobs[2].evaluation: is a key of jobs with task, not with class",
        ),
        (
            ("id: a,", "id: a, rollout: {engine_options: {gpu_memory: 1}},"),
            "jobs[0].rollout.engine_options.gpu_memory: must be at most 0.95, not 1",
        ),
        (
            ("id: a,", "id: a, rollout: {engine_options: {max_num_seqs: 0}},"),
            "jobs[0].rollout.engine_options.max_num_seqs: must be at least 1, not 0",
        ),
        (
            ("id: a,", "id: a, rollout: {engine: torch, engine_options: {enforce_eager: true}},"),
            "jobs[0].rollout.engine_options.enforce_eager: is an option of vLLM; the engine is torch",
        ),
        (
            ("id: a,", "id: a, rollout: {engine_options: {max_model_len: 319}},"),
            "jobs[0].rollout.engine_options.max_model_len: is 319; max_prompt_tokens and max_tokens of the algorithm are 320 ",
        ),
        (
            ("id: a,", "id: a, algorithm: {max_tokens: 3841},"),
            "jobs[0].algorithm: max_prompt_tokens and max_tokens are 4097 together; the model attends to 4096",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_field(folder: Path, change: tuple[str, str], problem: str) -> None:
    text = (folder / "jobs.yaml").read_text()
    assert change[0] in text
    (folder / "jobs.yaml").write_text(text.replace(*change))
    with pytest.raises(InputError) as refused:
        load_jobs(folder / "jobs.yaml")
    assert str(refused.value).startswith(f"{folder}/jobs.yaml: " + problem.replace("{folder}", str(folder)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("not json", "line 2: is not JSON"),
        ("[1]", "line 2: must be a mapping, not a list"),
        ('{"answer": "2"}', "line 2: prompt: is missing; its fields are answer"),
        ('{"prompt": "1", "answer": [2]}', "line 2: answer: must be text, not a list"),
        ('{"prompt": "1+2="}', "line 2: answer: is missing; its fields are prompt"),
        ('{"prompt": " "}', "line 2: prompt: is empty"),
        ('{"prompt": []}', "line 2: prompt: holds no messages"),
        ('{"prompt": [{"role": "user", "content": ""}]}', "line 2: prompt: holds empty messages alone"),
        ('{"prompt": ["hello"]}', r"line 2: prompt\[0\]: must be a mapping with role and content, not 'hello'"),
        ('{"prompt": [{"role": "user"}]}', r"line 2: prompt\[0\].content: must be text, not null"),
        ('{"prompt": "1", "size": ' + "1" * 5000 + "}", "line 2: is not JSON that can be read: Exceeds the limit"),
        ('{"prompt": "\\ud800"}', r"line 2: prompt: holds half a character \(a lone surrogate\)"),
    ],
)
def test_a_wrong_line_of_a_jsonl_file_is_named(folder: Path, line: str, problem: str) -> None:
    with (folder / "data.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=problem):
        load_jobs(folder / "jobs.yaml")


def test_an_answer_is_what_its_reward_can_compare_with(folder: Path) -> None:
    (folder / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "two"}\n')
    load_jobs(folder / "jobs.yaml")
    (folder / "jobs.yaml").write_text(GOOD.replace("file: data.jsonl", "file: data.jsonl, reward: number"))
    with pytest.raises(
        InputError, match=r"data\.jsonl: line 1: answer: holds no number, which the reward is to compare with: 'two'$"
    ):
        load_jobs(folder / "jobs.yaml")
    (folder / "data.jsonl").write_text('{"prompt": "1+1="}\n')
    (folder / "jobs.yaml").write_text(GOOD.replace("file: data.jsonl", "file: data.jsonl, reward: 'own:function'"))
    load_jobs(folder / "jobs.yaml")


def test_a_job_that_asks_for_more_nodes_than_the_cluster_has_is_refused(folder: Path) -> None:
    pool = "{gpus_per_node: 1, usd_per_gpu_hour: 1, max_nodes: 1}"
    text = GOOD.replace("defaults:", f"cluster: {{rollout: {pool}, training: {pool}}}\ndefaults:")
    (folder / "jobs.yaml").write_text(text.replace("id: a,", "id: a, training: {nodes: 2},"))
    with pytest.raises(InputError, match=r"training\.nodes: asks for 2 nodes; the training pool has at most 1"):
        load_jobs(folder / "jobs.yaml")


def test_a_real_run_has_two_pools(tmp_path: Path) -> None:
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1}
    file = tmp_path / "jobs.json"
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "cluster": {"pools": {"H20": pool}},
                "jobs": [{"id": "a", "iterations": 1, "slo": 2, "class": "own:Job"}],
            }
        )
    )
    expected = "cluster.pools.H20: is of no use to a real run, which has the pools rollout and training"
    for read in (load_jobs, load_cluster):
        with pytest.raises(InputError, match=re.escape(f"{file}: {expected}")):
            read(file)
    two = {"version": 1, "cluster": {"pools": {"rollout": pool, "training": pool}}}
    file.write_text(json.dumps(two))
    assert [*load_cluster(file).pools] == ["rollout", "training"]


def test_a_key_that_a_cluster_file_does_not_have_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    file, pool = tmp_path / "cluster.json", {"gpus_per_node": 4, "usd_per_gpu_hour": 1}
    file.write_text(json.dumps({"cluster": {"rollout": pool, "training": pool}, "host": {"training": ["gpu-1"]}}))
    with pytest.raises(InputError, match=rf"^{file}: host: is not a key of this file format; did you mean hosts\?$"):
        load_cluster(file)


def test_a_rollout_policy_of_ones_own_is_found_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "own_tails.py").write_text("raise SystemExit('user code ran')\n")
    text = "jobs: [{id: a, iterations: 1, slo: 2, task: count, model: {name: tiny}, rollout: {policy: 'own_tails:Tails'}}]\n"
    (tmp_path / "jobs.yaml").write_text("version: 1\n" + text)
    job: Any = load_jobs(tmp_path / "jobs.yaml").jobs[0]
    assert job.rollout.policy == "own_tails:Tails"
    (tmp_path / "jobs.yaml").write_text("version: 1\n" + text.replace("own_tails", "no_tails"))
    with pytest.raises(InputError, match=r"jobs\[0\]\.rollout\.policy: there is no module 'no_tails' in .*, or installed"):
        load_jobs(tmp_path / "jobs.yaml")
