"""The engine on vLLM, in this process: stepped by hand, so that progress is seen and generation can be stopped.

On GPUs it sleeps between phases: the KV cache is given back, and the weights wait in page-locked host memory (level 1) or are
dropped where staged ones will come in their place (level 2). On a CPU it stays resident:
vLLM has no sleep mode there, its weights are packed for the processor's kernels, and there is no device memory to give back.

A model whose output matrix is tied to its embedding is loaded untied, with two equal matrices: vLLM's reloading of tied weights is
silently wrong on CPUs (0.32).
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rollmux_offload import await_device_memory
from rollmux_segment import Footprint
from torch import Tensor

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.engines.interface import Batch, Engine, Response, Sampling
from runtime.engines.memory import BLOCK, SEQUENCES, cache_wanted, device_share
from runtime.engines.model_files import OUTPUT
from runtime.engines.probe import avoid_faults, missing_features
from runtime.memory import resident_gb
from runtime.phases import WorkerDied
from runtime.residency.layout import Layout, StagedWeights
from runtime.residency.staging import WeightStage, pieces

_Method = TypeVar("_Method", bound=Callable[..., Any])

# On a CPU the KV cache has room for this many sequences of full length; vLLM queues the others.
_CPU_FULL_SEQUENCES = 64


def process_died(error: BaseException, executor: Any) -> bool:
    """Whether an error of vLLM's is the death of one of its processes: it says so by `EngineDeadError`, or its executor knows.

    Args:
        executor: vLLM's, or None.
    """
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "EngineDeadError":
            return True
        cause = cause.__cause__ or cause.__context__
    return bool(getattr(executor, "is_failed", False))


def dies_with_its_processes(method: _Method) -> _Method:
    """Let a method of an engine raise WorkerDied where a process of the engine's has ended, so that the job is made anew.

    The engine's `executor()` is asked for what knows of the processes.
    """

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            if process_died(error, self.executor()):
                raise WorkerDied(f"a process of its engine has died: {one_line(str(error), 200)}") from error
            raise

    return call  # type: ignore[return-value]


class VllmEngine(Engine):
    """Samples with vLLM. Float32 on a CPU, bfloat16 on CUDA devices.

    One at a time in a process: vLLM keeps the number of threads and its distributed state for the whole process.

    Args:
        model_dir, max_length: as `Engine` has them.
        seed: of vLLM itself; responses depend on `Sampling.seed`.
        threads: that this process computes with on a CPU.
        tensor_parallel: devices that hold the model together; vLLM starts a process for each where they are several.
        options: `rollout.engine_options` of the job file, of those that are set.

    Raises:
        InputError: the directory cannot be used, or the installed vLLM lacks something.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        max_length: int,
        seed: int,
        threads: int,
        tensor_parallel: int,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        options = options or {}
        super().__init__(model_dir, max_length)
        self._gpu = torch.cuda.is_available()
        length, sequences = options.get("max_model_len", max_length), options.get("max_num_seqs", SEQUENCES)
        kv_bytes = 0 if self._gpu else _CPU_FULL_SEQUENCES * -(-length // 128) * 128 * self._files.cached * 4  # blocks of 128
        self._several = tensor_parallel > 1
        self._seeded = options.get("seeded", True)
        self._requests = count()
        self._level = 0  # of its sleep; 0 is awake
        self._given_back = 0  # bytes of all devices, by its sleep
        self._devices = tensor_parallel
        self._device_bytes = 0  # bytes on all devices
        _environment(threads, self._gpu)
        torch.set_num_threads(threads)
        # On a CPU a prompt is read in one step: vLLM 0.32 fails there where one that has a seed is split over two.
        device: dict[str, Any] = (
            {
                **self._share(options.get("gpu_memory"), sequences * -(-length // BLOCK) * BLOCK),
                "enforce_eager": options.get("enforce_eager", False),
                "enable_sleep_mode": True,
            }
            if self._gpu
            else {
                "kv_cache_memory_bytes": kv_bytes,
                "enforce_eager": True,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(4096, length, sequences),
            }
        )
        # A tied model starts with random weights and takes the true ones, under both names, before anything is sampled.
        weights: dict[str, Any] = {"load_format": "safetensors"}
        if self._files.tied:
            weights = {"hf_overrides": {"tie_word_embeddings": False}, "load_format": "dummy"}
        with _as_a_guest(), self._count_memory():
            if missing := missing_features():
                raise InputError(f"the installed vLLM lacks {', '.join(missing)}")
            avoid_faults()
            from vllm import LLM

            self._llm: Any = LLM(
                model=str(model_dir),
                skip_tokenizer_init=True,
                trust_remote_code=False,
                dtype="bfloat16" if self._gpu else "float32",
                max_model_len=length,
                max_num_seqs=sequences,
                seed=seed,
                tensor_parallel_size=tensor_parallel,
                logprobs_mode="processed_logprobs",
                worker_extension_cls="runtime.engines.vllm_worker.WorkerExtension",
                weight_transfer_config={"backend": "staged"},  # of that module
                disable_log_stats=True,
                use_tqdm_on_load=False,
                **device,
                **weights,
            )
        if self._files.tied:
            self._load(dict(self._files.tensors()))
        self._weight_bytes = sum(self._llm.collective_rpc("weight_bytes"))
        if not self._gpu:
            self._device_bytes = self._weight_bytes + kv_bytes
        self._resident_gb = resident_gb()  # of this process, before it has slept

    def _share(self, wanted: float | None, tokens: int) -> dict[str, Any]:
        """What of each GPU vLLM may take, and how much of that is for the cache, where the job needs less than all of it."""
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        share = device_share(free_bytes, total_bytes, wanted)
        cache = cache_wanted(self._files.parameters, self._files.cached, tokens, self._devices, share * total_bytes)
        return {"gpu_memory_utilization": share} | ({"kv_cache_memory_bytes": cache} if cache is not None else {})

    generate = dies_with_its_processes(Engine.generate)
    update_weights = dies_with_its_processes(Engine.update_weights)
    restore = dies_with_its_processes(Engine.restore)

    @dies_with_its_processes
    def offload(self, drop: bool = False) -> Footprint:
        """On a CPU everything stays, and so says the footprint; on GPUs what CUDA itself holds does."""
        if self._gpu and not self._level:
            awake_bytes = self._device_bytes
            with self._count_memory():
                self._llm.sleep(level=2 if drop else 1)
            self._llm.collective_rpc("release_host_cache")
            self._level, self._given_back = 2 if drop else 1, awake_bytes - self._device_bytes
        return self._footprint()

    def stay(self) -> Footprint:
        return self._footprint()  # weights and KV cache keep all that they have

    def close(self) -> None:
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        gc.collect()
        if self._gpu:
            torch.cuda.empty_cache()

    def executor(self) -> Any:
        """What vLLM starts its processes with; None where it is in a process of its own, or closed."""
        core = getattr(getattr(self._llm, "llm_engine", None), "engine_core", None)
        return getattr(getattr(core, "engine_core", None), "model_executor", None)

    @property
    def _is_awake(self) -> bool:
        return self._llm is not None and not self._level

    @property
    def _dropped(self) -> bool:
        return self._level == 2

    @contextmanager
    def _batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, earlier: Sequence[Response | None], streams: Sequence[int]
    ) -> Iterator[Batch]:
        engine = self._llm.llm_engine
        batch = _Requests(engine, earlier, self.version)
        try:
            for row, (prompt, stream, old) in enumerate(zip(prompts, streams, earlier, strict=True)):
                name, before = str(next(self._requests)), old.token_ids if old else ()
                batch.rows[name] = row
                parameters = self._parameters(sampling, stream, len(before))
                engine.add_request(name, {"prompt_token_ids": [*prompt, *before]}, parameters)
            yield batch
        finally:
            self.preemptions += sum(batch.preempted.values())
            if batch.rows:
                engine.abort_request(list(batch.rows))
            while engine.has_unfinished_requests():  # so that the next call finds nothing of this one
                engine.step()

    def _come_back(self, weights: dict[str, Tensor] | None) -> Footprint:
        if self._level:  # vLLM's own way out of too little memory leaves an engine that is of no use
            await_device_memory(self._given_back // self._devices, "an engine that wakes")
        with self._count_memory():
            if self._level:
                self._llm.wake_up(tags=["weights"])
            if weights is not None:
                self._load(weights)
            if self._level:
                self._llm.wake_up(tags=["kv_cache"])
        if self._level:
            self._llm.collective_rpc("release_host_cache")
        self._level = self._given_back = 0
        return self._footprint()

    def _footprint(self) -> Footprint:
        host = self._weight_bytes if self._level == 1 else 0
        grown = max(int((resident_gb() - self._resident_gb) * 1e9), 0)
        mapped = min(host, grown)  # page-locked by this process, or by others of the engine
        if not self._gpu:
            return Footprint(self._device_bytes, host, mapped)
        free, total = torch.cuda.mem_get_info()
        peak = self._device_bytes + self._given_back
        return Footprint(self._device_bytes, host, mapped, peak, self._devices * total, total - free)

    @contextmanager
    def _count_memory(self) -> Iterator[None]:
        """Count what happens to the device's free memory meanwhile: the permit says that nobody else is on it. A process that is
        none of the run's may be, and may free some; then less is known, but never less than nothing."""
        before = torch.cuda.mem_get_info()[0] if self._gpu else 0
        yield
        after = torch.cuda.mem_get_info()[0] if self._gpu else 0
        self._device_bytes = max(0, self._device_bytes + (before - after) * self._devices)

    def _load(self, weights: dict[str, Tensor]) -> None:
        with self._at_workers(weights) as update_info:
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": update_info})
            self._llm.finish_weight_update()
        if not self._llm.reset_prefix_cache():  # what it remembers of prompts was computed with the old weights
            raise RuntimeError("vLLM did not clear its prefix cache, which holds what the old weights computed")

    @contextmanager
    def _at_workers(self, weights: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
        """Weights as `runtime.engines.vllm_worker.Staged` has them."""
        alias = (OUTPUT, self._files.embedding) if self._files.tied else None
        if not self._several:
            yield {"weights": weights | ({alias[0]: weights[alias[1]]} if alias else {})}
        elif isinstance(weights, StagedWeights):  # a process a device: each takes what it needs from where they wait
            yield {"path": weights.path, "alias": alias}
        else:
            stage, layout = WeightStage(), Layout.of(weights)
            stage.begin(layout, 0)
            for offset, piece in pieces(weights, layout):
                stage.receive(0, offset, piece)
            try:
                yield {"path": stage.path, "alias": alias, "keep": False}
            finally:
                stage.close()

    def _parameters(self, sampling: Sampling, stream: int, tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seeds = np.random.SeedSequence((sampling.seed, stream, tokens))  # another one where it goes on behind so many tokens
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens - tokens,
            seed=int(seeds.generate_state(1, np.uint64)[0] >> 1) if self._seeded else None,  # of 63 bits
            ignore_eos=sampling.ignore_end,
            stop_token_ids=[] if sampling.ignore_end else list(self._files.end_ids),
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )


class _Requests(Batch):
    """Requests of vLLM's engine.

    Attributes:
        rows: those that run, by the name of their request.
        preempted: how often each request has been preempted, of those that have been.
    """

    def __init__(self, engine: Any, earlier: Sequence[Response | None], version: int) -> None:
        super().__init__(earlier, version)
        self._engine = engine
        self._tokens: list[list[int]] = [[] for _ in earlier]
        self._logprobs: list[list[float]] = [[] for _ in earlier]
        self._finished = set[int]()
        self.rows, self.preempted = dict[str, int](), dict[str, int]()

    @property
    def running(self) -> int:
        return len(self.rows)

    def step(self) -> tuple[list[Response], int]:
        engine, now, sampled = self._engine, list[int](), 0
        for output in engine.step():
            new = output.outputs[0]
            row = self.rows[output.request_id]
            self._tokens[row] += new.token_ids
            self._logprobs[row] += [at[token].logprob for at, token in zip(new.logprobs or (), new.token_ids, strict=True)]
            sampled += len(new.token_ids)
            if output.finished:
                del self.rows[output.request_id]
                now.append(row)
        self._finished.update(now)
        requests = engine.engine_core.engine_core.scheduler.requests
        self.preempted |= {name: request.num_preemptions for name, request in requests.items() if request.num_preemptions}
        return [self.response(row) for row in now], sampled

    def drop(self, rows: Collection[int]) -> None:
        names = [name for name, row in self.rows.items() if row in rows]
        if names:
            self._engine.abort_request(names)
        for name in names:
            del self.rows[name]

    def sampled(self, row: int) -> tuple[Sequence[int], Sequence[float], bool]:
        return self._tokens[row], self._logprobs[row], row in self._finished


def _environment(threads: int, gpu: bool) -> None:
    """vLLM reads its settings from the environment, when it is imported and later; what the user set stays."""
    if not gpu:  # its sampler would call a C++ compiler, for seconds and no gain
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        if "torch._dynamo" in sys.modules:  # which has read it already, as where a model of transformers is loaded
            from torch._dynamo import config

            config.disable = os.environ["TORCH_COMPILE_DISABLE"] == "1"
    elif find_spec("flashinfer") is None:  # vLLM (0.32 too) imports it to see whether it can sample with it
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop in this process
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # whoever starts this process pins it to its cores
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # its processes are all on this machine
        "NCCL_SOCKET_IFNAME": "=lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def _as_a_guest() -> Iterator[None]:
    """Let vLLM start, but not warn of its own imports, nor leave an idle function in place of `torch.set_num_threads`."""
    true = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = true
