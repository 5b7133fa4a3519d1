"""The trainer for TRL: real runs of its GRPOTrainer whose turns are those that a service granted."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rollmux_client

from runtime.engines.pretrained import load_tokenizer
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory
from tests.clients.little_service import LittleService, Turn

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed"),  # an import here would cost every run of tests
    pytest.mark.filterwarnings("ignore"),  # of other people's packages about each other
]
ROOT = Path(__file__).parents[2]
Make = Callable[..., Any]


@pytest.fixture
def make(service: LittleService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a trainer whose rewards and optimizer steps see that they have their turn."""
    import rollmux_trl
    from datasets import Dataset  # type: ignore[import-untyped]
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = model_directory(ModelSpec(), 0)

    def reward(completions: list[str], **_: Any) -> list[float]:
        assert len(service.held) == 1
        return [float(len(text)) for text in completions]

    class HasItsTurn(TrainerCallback):
        def on_pre_optimizer_step(self, *arguments: Any, **options: Any) -> None:
            assert {turn.phase for turn in service.held.values()} == {"training"}

    def trainer(job: rollmux_client.Job, output: Path = tmp_path, judge: Any = None, **options: Any) -> Any:
        digits = Dataset.from_list([{"prompt": str(digit)} for digit in range(8)])
        usual = {
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "num_generations": 2,
            "max_completion_length": 4,
        }
        quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "bf16": False}
        config = GRPOConfig(output_dir=str(output), gradient_checkpointing=False, **(usual | quiet | options))
        return rollmux_trl.GRPOTrainer(
            job=job,
            model=str(model),
            processing_class=load_tokenizer(model),
            reward_funcs=reward if judge is None else [reward, judge],
            reward_processing_classes=None if judge is None else [None, load_tokenizer(model)],
            train_dataset=digits,
            eval_dataset=digits.select(range(2)),
            callbacks=[HasItsTurn()],
            args=config,
        )

    return trainer


def iteration(k: int) -> list[Turn]:
    return [Turn("one", "rollout", k, False), Turn("one", "training", k, False)]


def init(k: int = 0) -> Turn:
    return Turn("one", "init", k, False)


def test_an_iteration_is_a_generation_and_all_optimizer_steps_up_to_the_next_one(service: LittleService, make: Make) -> None:
    service.jobs["one"].iterations = 2
    options = {"gradient_accumulation_steps": 4, "num_iterations": 2, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 1}
    with rollmux_client.attach() as job:
        trainer = make(job, **options)
        trainer.train()
    evaluation = [Turn("one", "rollout", k, True) for k in range(3)]  # after two steps; after one it is in the training
    assert service.granted == [init(), *iteration(0), evaluation[1], *iteration(1), evaluation[2]]
    released = [body for name, body in service.requests if name == "release" and body["phase"] == "rollout"]
    assert [body["iteration"] for body in released if "reward" in body["metrics"]] == [0, 1]
    watched = {name for request, body in service.requests if request == "release" for name in body["metrics"]}
    assert watched == {"reward", "frac_reward_zero_std", "completions/clipped_ratio", "entropy"}  # vLLM alone has another sampler
    assert trainer.state.global_step == 4 and service.jobs["one"].state == "done"


def test_a_generation_in_the_middle_of_an_optimizer_step_is_an_iteration_too(service: LittleService, make: Make) -> None:
    service.jobs["one"].iterations = 2
    with rollmux_client.attach() as job:
        make(job, gradient_accumulation_steps=4, steps_per_generation=2, max_steps=1).train()
    assert service.granted == [init(), *iteration(0), *iteration(1)]


def test_a_reward_model_leaves_the_devices_with_the_trainer(
    service: LittleService, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rollmux_trl
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(model_directory(ModelSpec(), 0), num_labels=1)
    judge = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    held: list[int] = []
    end = rollmux_trl.GRPOTrainer._end  # noqa: SLF001

    def count(trainer: Any, turn: rollmux_client.PhaseContext) -> None:
        end(trainer, turn)
        held.append(sum(one.untyped_storage().nbytes() for one in judge.parameters()))

    monkeypatch.setattr(rollmux_trl.GRPOTrainer, "_end", count)
    with rollmux_client.attach() as job:
        make(job, judge=judge, gradient_accumulation_steps=2, max_steps=3).train()
    assert len(held) == 7 and {*held} == {0}


def test_the_model_can_be_used_in_a_turn_after_the_training(service: LittleService, make: Make) -> None:
    service.jobs["one"].iterations = 1
    with rollmux_client.attach() as job:
        trainer = make(job, gradient_accumulation_steps=2, max_steps=1)
        trainer.train()
        weights = [*trainer.model.parameters()]
        assert not any(one.untyped_storage().nbytes() for one in weights)
        with trainer.turn():
            assert all(one.isfinite().all() for one in weights)
        assert not any(one.untyped_storage().nbytes() for one in weights)
        with pytest.raises(ZeroDivisionError), trainer.turn():  # the devices are given back all the same
            1 / 0  # noqa: B018
        assert not any(one.untyped_storage().nbytes() for one in weights)
    assert service.granted == [init(), *iteration(0), *[Turn("one", "rollout", 1, True)] * 2]


class Server:
    """A vLLM server's side of TRL, which says what is held on which devices when it is called."""

    def __init__(self, **options: Any) -> None:
        self.vllm_client = self
        self.see: Callable[[str], None] = lambda what: None

    def get_server_info(self) -> Any:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def sync_weights(self) -> None:
        self.see("sync")

    def generate(self, prompts: list[Any], **_: Any) -> Any:
        self.see("sample")
        return None, [[4, 1] for _ in prompts], [[[-1.0], [-1.0]] for _ in prompts], None


def test_with_a_server_what_needs_the_trainer_is_in_the_turn_of_its_devices(
    service: LittleService, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.trainer import grpo_trainer

    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", Server)
    service.jobs["one"].iterations = 2
    seen: set[tuple[str, tuple[str, ...], bool]] = set()
    with rollmux_client.attach() as job:
        trainer = make(job, use_vllm=True, vllm_mode="server", gradient_accumulation_steps=2, max_steps=2)

        def see(what: str) -> None:
            is_loaded = any(one.untyped_storage().nbytes() for one in trainer._tensors().values())  # noqa: SLF001
            seen.add((what, tuple(sorted(service.held)), is_loaded))

        score = trainer._get_per_token_logps_and_entropies  # noqa: SLF001

        def scored(*arguments: Any, **options: Any) -> Any:
            see("log-probs")
            return score(*arguments, **options)

        trainer.vllm_generation.see = see
        trainer._get_per_token_logps_and_entropies = scored  # noqa: SLF001
        trainer.train()
    both = ("rollout", "training")
    assert seen == {("sync", both, True), ("sample", ("rollout",), False), ("log-probs", ("training",), True)}
    first, later = (Turn("one", "sync", k, False) for k in (-1, 0))
    assert service.granted == [init(), first, *iteration(0), later, *iteration(1)]
    rewarded = [body["iteration"] for name, body in service.requests if name == "release" and "reward" in body["metrics"]]
    assert rewarded == [0, 1] and service.jobs["one"].state == "done"


def test_a_job_that_is_asked_to_stop_leaves_a_checkpoint_and_goes_on(service: LittleService, make: Make, tmp_path: Path) -> None:
    with pytest.raises(rollmux_client.Interrupted), rollmux_client.attach() as job:
        trainer = make(job, gradient_accumulation_steps=2, max_steps=3)
        job._owner = "to stop"  # noqa: SLF001 (as a heartbeat would say)
        trainer._job._check_stop = lambda: None  # noqa: SLF001 (it is said between the turn and the end of the step)
        trainer.train()
    assert (
        service.granted == [init(), *iteration(0)]
        and (tmp_path / "checkpoint-1").exists()
        and service.jobs["one"].state == "queued"
    )
    with rollmux_client.attach() as job:
        trainer = make(job, gradient_accumulation_steps=2, max_steps=3)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert service.granted == [init(), *iteration(0), init(1), *iteration(1), *iteration(2)] and trainer.state.global_step == 3


def test_a_checkpoint_whose_saving_was_killed_is_left_out(
    service: LittleService, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rollmux_trl
    from transformers import TrainerState

    assert rollmux_trl.last_checkpoint(tmp_path / "missing") is None
    write = TrainerState.save_to_json

    def killed(state: Any, path: str) -> None:
        if path.endswith("checkpoint-2/trainer_state.json"):
            raise KeyboardInterrupt
        write(state, path)

    monkeypatch.setattr(TrainerState, "save_to_json", killed)
    with pytest.raises(KeyboardInterrupt), rollmux_client.attach() as job:
        make(job, gradient_accumulation_steps=2, max_steps=3, save_strategy="steps", save_steps=1).train()
    assert (tmp_path / "checkpoint-2" / "optimizer.pt").exists()
    assert rollmux_trl.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"epoch": 0.')
    assert rollmux_trl.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    (tmp_path / "checkpoint-1" / "trainer_state.json").rename(tmp_path / "checkpoint-2" / "trainer_state.json")
    assert rollmux_trl.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_a_checkpoint_that_is_older_than_the_count_is_where_it_goes_on(service: LittleService, make: Make, tmp_path: Path) -> None:
    """Its process was killed when it had done two iterations and saved one, and again beside the end of a phase and after all."""
    save: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    with rollmux_client.attach() as job:
        make(job, **save).train()
    for counted, saved, more in (
        (2, 1, [init(2), *iteration(1), *iteration(2)]),
        (0, 1, [init(0), *iteration(0), *iteration(1), *iteration(2)]),
        (3, 3, [init(3)]),
    ):
        one = service.jobs["one"]
        service.granted.clear()
        one.iteration, one.state, one.over = counted, "queued", set()
        with rollmux_client.attach() as job:
            trainer = make(job, **save)
            trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
        assert service.granted == more and trainer.state.global_step == 3 and service.jobs["one"].state == "done"


def test_other_iterations_than_the_entry_are_told_before_anything_is_trained(service: LittleService, make: Make) -> None:
    with (
        pytest.raises(rollmux_client.Mismatch, match="its entry says iterations: 3, and this process does 4"),
        rollmux_client.attach() as job,
    ):
        make(job, gradient_accumulation_steps=2, max_steps=4).train()
    assert service.granted == [init()] and service.jobs["one"].state == "queued"


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_example_runs_on_a_gpu_where_there_is_one(has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rollmux_trl  # noqa: F401 (patched below)

    given: dict[str, Any] = {}
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    monkeypatch.setattr("trl.GRPOConfig", given.update)
    monkeypatch.setattr("rollmux_trl.GRPOTrainer", lambda **_: SimpleNamespace(train=lambda **_: None))
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr(sys, "argv", ["trl_job.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "trl_job.py"), run_name="__main__")
    assert given["use_cpu"] is not has_gpu


SLOW = """
import os, runpy, time
make = os.makedirs

def make_slowly(path, *arguments, **options):
    time.sleep(3.0 * (os.environ["RANK"] == "0" and str(path).endswith("trl-job")))
    make(path, *arguments, **options)

os.makedirs = make_slowly
runpy.run_path({!r}, run_name="__main__")
"""


def test_several_processes_wait_for_the_turn_of_the_first(service: LittleService, tmp_path: Path) -> None:
    service.jobs["one"].iterations = 2
    script = tmp_path / "first_is_slow.py"  # to make the folder in which all of them look for a checkpoint
    script.write_text(SLOW.format(str(ROOT / "examples" / "trl_job.py")))
    paths = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
    ]
    words = [*launcher, "--rdzv-endpoint", "127.0.0.1:0", str(script), "--iterations", "2", "--prompts", "1", "--tokens", "4"]
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, start_new_session=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert service.granted == [init(), *iteration(0), *iteration(1)]


def test_two_jobs_that_attach_at_once_never_have_their_states_on_the_device_together(
    service: LittleService, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rollmux_trl
    import torch
    from trl.trainer import grpo_trainer

    from tests.clients import little_service

    monkeypatch.setattr(little_service, "POOLS", dict.fromkeys(little_service.POOLS, ("device",)))
    for job in service.jobs.values():
        job.iterations = 2
    trainers: dict[str, Any] = {}
    resident: list[dict[str, int]] = []  # bytes of all jobs when one has had a turn
    make_trl, end = grpo_trainer.GRPOTrainer.__init__, rollmux_trl.GRPOTrainer._end  # noqa: SLF001

    def load(trainer: Any, *arguments: Any, **options: Any) -> None:
        assert service.held["device"][:2] == (trainer._job.name, "init")  # noqa: SLF001
        trainers[trainer._job.name] = trainer  # noqa: SLF001
        make_trl(trainer, *arguments, **options)

    def count(trainer: Any, turn: rollmux_client.PhaseContext) -> None:
        loaded = {name: one._tensors() for name, one in trainers.items() if hasattr(one, "optimizer")}  # noqa: SLF001
        resident.append({name: sum(one.untyped_storage().nbytes() for one in its.values()) for name, its in loaded.items()})
        end(trainer, turn)

    monkeypatch.setattr(grpo_trainer.GRPOTrainer, "__init__", load)
    monkeypatch.setattr(rollmux_trl.GRPOTrainer, "_end", count)
    torch.set_num_threads(1)

    def run(name: str) -> None:
        with rollmux_client.attach(name) as job:
            trainer = make(job, gradient_accumulation_steps=2, max_steps=2, output=tmp_path / name)
            trainer.train()
            trainer.save_model(str(tmp_path / name / "last"))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, name) for name in ("one", "other")]:
            done.result()
    assert [turn.phase for turn in service.granted].count("init") == 2
    alone = max(max(its.values()) for its in resident)
    assert max(sum(its.values()) for its in resident) == alone
    assert alone > 2 * min(max(its.values()) for its in resident)  # with optimizer state it is more than the model
    assert all((tmp_path / name / "last" / "model.safetensors").stat().st_size > 1000 for name in trainers)


RANKS = """
import sys
import rollmux_trl
from datasets import Dataset
from runtime.engines.pretrained import load_tokenizer
from trl.trainer.grpo_config import GRPOConfig

folder, model = sys.argv[1:]
held = lambda trainer: sum(one.untyped_storage().nbytes() for one in trainer._buckets()) if trainer._buckets else -1

class Counts(rollmux_trl.GRPOTrainer):
    def _end(self, turn):
        before = held(self)
        super()._end(turn)
        if turn.name == "training":
            print("held", before, held(self), flush=True)

with rollmux_trl.attach() as job:
    data = Dataset.from_list([{"prompt": str(digit)} for digit in range(8)])
    config = GRPOConfig(output_dir=folder, per_device_train_batch_size=2, num_generations=2, max_completion_length=4, max_steps=3,
        report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False)
    trainer = Counts(job=job, model=model, processing_class=load_tokenizer(model), train_dataset=data, args=config,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions])
    trainer.train()
"""


def test_gradient_buckets_of_two_ranks_are_on_the_devices_in_their_turns_alone(service: LittleService, tmp_path: Path) -> None:
    model = model_directory(ModelSpec(), 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-c", RANKS, str(tmp_path), str(model)]
    ranks = []
    for rank in map(str, range(2)):
        own = os.environ | common | {"RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": str(ROOT)}
        ranks.append(subprocess.Popen(words, env=own, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True))
    for process in ranks:
        lines = [line.split()[1:] for line in process.communicate()[0].splitlines() if line.startswith("held ")]
        assert process.returncode == 0 and len(lines) == 3
        assert all(int(before) > 3_000_000 for before, _ in lines) and {after for _, after in lines} == {"0"}, lines
    assert service.jobs["one"].state == "done"
    assert any({process.pid for process in ranks} <= {*body["pids"]} for name, body in service.requests if name == "heartbeat")
