"""Two jobs whose states do not fit their devices together attach at the same moment and take turns.

A fake of two devices counts the memory of verl's and slime's trainers, whose calls are made in their own order; a trainer in plain
torch counts its bytes.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import rollmux_client

from rollmux_env.files import EXAMPLES
from runtime.jobs.file import load_cluster, load_jobs
from tests.clients import little_service
from tests.clients.little_service import LittleService

SIZE_GB, RESERVE_GB = 80.0, 4.0
ENGINE_GB, MODEL_GB, OPTIMIZER_GB, CONTEXT_GB = 40.0, 16.0, 32.0, 1.5


class Devices:
    """Two devices that a job of one pool has all of: who has how much on each of them.

    Attributes:
        most_gb: that all had together on one. loads: jobs in the order in which they began to load.
    """

    def __init__(self, service: LittleService) -> None:
        self.service = service
        self.used: list[dict[tuple[str, str], float]] = [{}, {}]
        self.most_gb = 0.0
        self.loads: list[str] = []
        self._lock = threading.Lock()

    def take(self, job: str, what: str, gb: float) -> None:
        """A job has so much of each device for something."""
        with self._lock:
            for used in self.used:
                used[job, what] = gb
                assert sum(used.values()) <= SIZE_GB - RESERVE_GB, f"out of memory: {used}"
                self.most_gb = max(self.most_gb, sum(used.values()))
            holders = {turn.job for turn in self.service.held.values()}
            assert what == "context" or not gb or holders == {job}, f"{job} takes memory for its {what} in the turn of {holders}"

    def of(self, job: str) -> float:
        return sum(gb for (owner, _), gb in self.used[0].items() if owner == job)


@pytest.fixture
def devices(service: LittleService, monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Both phases of a job run on the same devices."""
    monkeypatch.setattr(little_service, "POOLS", dict.fromkeys(little_service.POOLS, ("device",)))
    return Devices(service)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    parts = name.split(".")
    for k in range(1, len(parts)):
        parent = ".".join(parts[:k])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


def imported(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A plugin, with the fakes of its framework."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    plugin = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return plugin


def together(monkeypatch: pytest.MonkeyPatch, plugin: Any, run: Callable[[str], None]) -> None:
    """Both jobs begin at the same moment."""
    own, errors, ready = threading.local(), [], threading.Barrier(2)
    client = ModuleType("client")
    vars(client).update(vars(rollmux_client), attach=lambda: rollmux_client.attach(own.name))
    monkeypatch.setattr(plugin, "rollmux_client", client)

    def work(name: str) -> None:
        own.name = name
        ready.wait()
        try:
            run(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


def check(devices: Devices, most_gb: float) -> None:
    """Each initialised under its permit, and never was there more than one's state beside what the other keeps."""
    granted = devices.service.granted
    assert [turn.phase for turn in granted].count("init") == 2 and {turn.job for turn in granted[:1]} == {devices.loads[0]}
    assert len(devices.loads) == 2 and devices.most_gb <= most_gb + CONTEXT_GB
    assert {job.state for job in devices.service.jobs.values()} == {"done"}


@pytest.mark.parametrize("colocated", [True, False])
def test_two_jobs_of_slime_never_have_more_than_one_ones_state(
    devices: Devices, monkeypatch: pytest.MonkeyPatch, colocated: bool
) -> None:
    """Separate, their engines stay: so they are made small here."""
    own = threading.local()
    engine_gb = ENGINE_GB if colocated else 10.0

    class Manager:
        """As slime's: engines are there when it is made, and only those that share GPUs with the trainer are ever offloaded.

        Memory that is released twice ends an engine of SGLang (`Cannot pause allocation that is not active` of torch_memory_saver).
        """

        def __init__(self, job: str, args: Any) -> None:
            devices.loads.append(job)
            devices.take(job, "engine", engine_gb)
            self.job, self.args, self.is_here = job, args, True
            if args.offload_rollout:
                self._offload()

        def _offload(self) -> None:
            if self.args.colocate:
                assert self.is_here, "its engines are away, and would end"
                devices.take(self.job, "engine", 0.0)
                self.is_here = False

        def _onload(self) -> None:
            assert not self.is_here
            devices.take(self.job, "engine", engine_gb)
            self.is_here = True

        def _generate(self, k: int) -> str:
            assert self.weights == k  # the last ones
            return "samples"

        weights = -1

        def __getattr__(self, method: str) -> Any:
            does = {"offload": self._offload, "onload_weights": self._onload, "generate": self._generate}.get(method)
            return SimpleNamespace(remote=does or (lambda *_: None))

    class Actor:
        """As slime's trainer: with --offload-train it is away but in `train` and `save_model`."""

        def __init__(self, job: str, args: Any, manager: Manager) -> None:
            self.job, self.args, self.manager, self.trained = job, args, manager, 0
            devices.take(job, "context", CONTEXT_GB)
            self._here()
            self._away()

        def _here(self) -> None:
            devices.take(self.job, "trainer", MODEL_GB + OPTIMIZER_GB)

        def _away(self) -> None:
            if self.args.offload_train:
                devices.take(self.job, "trainer", 0.0)

        def async_train(self, k: int, samples: str) -> None:
            self._here()
            self.trained += 1
            self._away()

        def save_model(self, k: int, force_sync: bool) -> None:
            self._here()
            self._away()

        def update_weights(self) -> None:
            sides = {turn.phase for turn in devices.service.held.values()}
            assert sides == {"rollout" if self.args.colocate else "sync"}
            self.manager.weights = self.trained

        def clear_memory(self) -> None: ...

    names = ("configure_logger", "init_tracking", "finish_tracking")
    module(monkeypatch, "slime.observability.logging_utils", **dict.fromkeys(names, lambda *_: None))
    module(
        monkeypatch,
        "slime.ray.placement_group",
        create_placement_groups=lambda args: {"rollout": None},
        create_rollout_manager=lambda args, group: (Manager(own.name, args), None),
        create_training_models=lambda args, groups, manager: (Actor(own.name, args, manager), None),
    )
    module(monkeypatch, "slime.utils.arguments", parse_args=lambda: None)
    module(monkeypatch, "slime.utils.misc", should_run_periodic_action=lambda k, interval, *_: (k + 1) % interval == 0)
    module(monkeypatch, "ray", get=lambda reference: reference)
    driver: Any = imported(monkeypatch, "rollmux_slime")
    usual = {"use_critic": False, "release_train": False, "offload_rollout": colocated, "offload_train": True, "num_rollout": 3}
    more = {"start_rollout_id": 0, "eval_interval": 2, "save_interval": 1, "skip_eval_before_train": True, "colocate": colocated}

    def run(name: str) -> None:
        own.name = name
        driver.train(SimpleNamespace(**usual, **more, rollout_global_dataset=False))

    together(monkeypatch, driver, run)
    kept_gb = 0.0 if colocated else 2 * engine_gb
    check(devices, max(ENGINE_GB, MODEL_GB + OPTIMIZER_GB) + kept_gb + CONTEXT_GB)


class Config(dict[str, Any]):
    """As much of OmegaConf's as the plugin uses."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def config_of(strategy: str, **more: bool) -> Config:
    """Of a job of verl that offloads all, but for what `more` says."""
    offloads = {"param_offload": True, "optimizer_offload": True, "grad_offload": True} | more
    engine = Config({key: value for key, value in offloads.items() if strategy == "megatron" or key != "grad_offload"})
    actor = Config({"strategy": strategy, "megatron" if strategy == "megatron" else "fsdp_config": engine})
    rollout = Config(free_cache_engine=more.get("free_cache_engine", True))
    return Config(
        trainer=Config(v1=Config(trainer_mode="rollmux")),
        actor_rollout_ref=Config(actor=actor, rollout=rollout, ref=Config(strategy=strategy)),
        critic=Config(strategy=strategy, fsdp=Config(param_offload=True)),
    )


@pytest.fixture
def verl(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin for verl, whose trainer makes the calls of verl's own `init` and `fit` in their order."""
    own = threading.local()

    class Workers:
        """As verl's: the cache is emptied when the parameters have left, before the optimizer leaves."""

        def __init__(self, job: str) -> None:
            self.job, self.cached_gb = job, 0.0

        def init_model(self) -> None:
            devices.loads.append(self.job)
            devices.take(self.job, "context", CONTEXT_GB)
            devices.take(self.job, "trainer", MODEL_GB)
            self.to("cpu")

        def update_actor(self) -> None:
            devices.take(self.job, "trainer", MODEL_GB + OPTIMIZER_GB)
            self.cached_gb = OPTIMIZER_GB
            devices.take(self.job, "trainer", self.cached_gb)

        def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            assert device == "cpu" and model
            self.cached_gb = 0.0
            devices.take(self.job, "trainer", 0.0)

    class Engines:
        def __init__(self, job: str) -> None:
            self.job = job
            devices.take(job, "engine", ENGINE_GB)

        def sleep_replicas(self) -> None:
            devices.take(self.job, "engine", 0.0)

        def update_weights(self, version: int) -> None:
            devices.take(self.job, "engine", ENGINE_GB)

    class PPOTrainerSync:
        def __init__(self, config: Any) -> None:
            self.config, self.global_steps, self.total_training_steps = config, 0, 3
            self.timing_raw: dict[str, float] = {}

        def init(self) -> None:
            self.actor_rollout_wg = Workers(own.name)
            self.actor_rollout_wg.init_model()
            self.checkpoint_manager = Engines(own.name)
            self.checkpoint_manager.sleep_replicas()
            self.on_init_end()

        def fit(self, agent_loop_manager: Any) -> None:
            for step in range(1, 4):
                self.global_steps = step
                self.on_step_begin()
                self.on_sample_end()
                self.actor_rollout_wg.update_actor()
                self.on_step_end()
                if step == 2:
                    self.on_validate_begin()
                    self.on_validate_end()

        def on_sample_end(self) -> None:
            self.checkpoint_manager.sleep_replicas()

        def on_init_end(self) -> None: ...
        def on_step_begin(self) -> None: ...
        def on_step_end(self) -> None: ...
        def on_validate_begin(self) -> None: ...
        def on_validate_end(self) -> None: ...

    def select(config: Any, path: str) -> Any:
        for key in path.split("."):
            config = config.get(key, {})
        return config

    module(monkeypatch, "omegaconf", OmegaConf=SimpleNamespace(select=select), open_dict=lambda config: nullcontext())
    utils = {"need_critic": lambda config: config.get("uses_critic", False), "need_reference_policy": lambda config: True}
    module(monkeypatch, "verl.trainer.ppo.utils", **utils)
    module(monkeypatch, "verl.trainer.ppo.v1.trainer_base", register_trainer=lambda name: lambda kind: kind)
    module(monkeypatch, "verl.trainer.ppo.v1.trainer_sync", PPOTrainerSync=PPOTrainerSync)

    @contextmanager
    def timer(*_: Any, **__: Any) -> Iterator[None]:
        yield

    module(monkeypatch, "verl.utils.debug", marked_timer=timer)
    plugin: Any = imported(monkeypatch, "rollmux_verl")
    plugin.own = own
    return plugin


def test_two_jobs_of_verl_never_have_more_than_one_ones_state(verl: Any, devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str) -> None:
        verl.own.name = name
        trainer = verl.PPOTrainerInTurns(config_of("fsdp"))
        trainer.init()
        trainer.fit(None)

    together(monkeypatch, verl, run)
    check(devices, MODEL_GB + OPTIMIZER_GB + CONTEXT_GB)
    assert {turn.phase for turn in devices.service.granted} == {"init", "rollout", "training"}


@pytest.mark.parametrize(
    ("strategy", "without", "critic", "says"),
    [
        ("fsdp", "param_offload", False, "set actor_rollout_ref.actor.fsdp_config.param_offload=True"),
        ("fsdp2", "optimizer_offload", False, "set actor_rollout_ref.actor.fsdp_config.optimizer_offload=True"),
        ("fsdp", "free_cache_engine", False, "set actor_rollout_ref.rollout.free_cache_engine=True"),
        ("fsdp", "", True, "set critic.fsdp.optimizer_offload=True"),
    ],
)
def test_a_job_of_verl_that_would_stay_on_its_gpus_is_refused(
    verl: Any, strategy: str, without: str, critic: bool, says: str
) -> None:
    config = config_of(strategy, **({without: False} if without else {})) | {"uses_critic": critic}
    with pytest.raises(ValueError, match="would stay on the GPUs") as refused:
        verl.PPOTrainerInTurns(Config(config))
    assert str(refused.value).endswith(says)


def test_gradients_of_megatron_and_its_reference_are_to_leave_too(verl: Any) -> None:
    with pytest.raises(ValueError, match="would stay on the GPUs") as refused:
        verl.PPOTrainerInTurns(config_of("megatron", grad_offload=False))
    settings = "actor_rollout_ref.actor.megatron.grad_offload=True actor_rollout_ref.ref.megatron.param_offload=True"
    assert str(refused.value).endswith(f"set {settings}")


def test_two_trainers_in_plain_torch_take_turns_with_their_bytes(devices: Devices) -> None:
    """Parameters, gradients and optimizer state of one wait in host memory while the other has its turn."""
    import torch
    from rollmux_offload import Offloader, state_of

    offloaders: dict[str, Offloader] = {}
    alone: dict[str, list[float]] = {}
    seen: list[int] = []

    def train(name: str, attached: bool) -> list[float]:
        model = torch.nn.Linear(256, 256)
        torch.nn.init.constant_(model.weight, 0.01 * len(name))
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []

        def step(k: int) -> None:
            loss = model(torch.ones(8, 256) * (k + 1)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))

        if not attached:
            for k in range(3):
                step(k)
                optimizer.zero_grad(set_to_none=k == 1)
            return losses
        with rollmux_client.attach(name) as job:
            with job.init():
                offloader = offloaders[name] = Offloader(lambda: state_of(model, optimizer))
                offloader.offload()
            for k in job.iterations(3):
                with job.phase("rollout"):
                    pass
                with job.phase("training"):
                    offloader.restore()
                    step(k)
                    optimizer.zero_grad(set_to_none=k == 1)
                    seen.append(sum(one.footprint().device for one in [*offloaders.values()]))
                    offloader.offload()
        return losses

    found: dict[str, list[float]] = {}
    for name in ("one", "other"):
        alone[name] = train(name, attached=False)
    threads = [threading.Thread(target=lambda name=name: found.__setitem__(name, train(name, True))) for name in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == alone
    parameters = (256 * 256 + 256) * 4
    assert len(seen) == 6 and max(seen) <= 4 * parameters + 64  # with gradients, two moments and a count: one's, never both
    assert all(one.footprint().device == 0 for one in offloaders.values())


@pytest.mark.parametrize("name", ["verl_fsdp", "verl_megatron"])
def test_the_command_lines_for_verl_set_all_that_the_plugin_asks_for(verl: Any, name: str) -> None:
    words = (EXAMPLES / "launch" / f"{name}.sh").read_text().split()
    config = Config()
    for key, _, value in (word.partition("=") for word in words if word.startswith("actor_rollout_ref.")):
        *path, last = key.split(".")
        section = config
        for part in path:
            section = section.setdefault(part, Config())
        section[last] = value == "True" or value
    config.actor_rollout_ref.setdefault("ref", Config(strategy=config.actor_rollout_ref.actor.strategy))
    config.actor_rollout_ref.ref.setdefault("strategy", config.actor_rollout_ref.actor.strategy)
    assert [*verl.settings_missing(config)] == []
    assert "trainer.v1.trainer_mode=rollmux" in words


def test_the_job_of_each_command_line_fits_the_cluster_file() -> None:
    specs: Any = load_jobs(EXAMPLES / "gpu_jobs.yaml").jobs
    used = {re.search(r"--job (\S+)", path.read_text())[1] for path in (EXAMPLES / "launch").glob("*.sh")}  # type: ignore[index]
    assert {spec.id for spec in specs} == used
    cluster = load_cluster(EXAMPLES / "one_machine.yaml")
    assert cluster.one_device
    kept = [spec.rollout.device_gb for spec in specs] + [spec.training.device_gb for spec in specs]
    most_gb = cluster.pools["training"].device_memory_gb
    assert most_gb is not None and sum(sorted(kept)[-6:]) <= most_gb  # three of them fit a GPU
