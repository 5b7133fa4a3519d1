"""The engine on vLLM, in this process. It is stepped by hand, so that progress is visible and generation can be stopped.

On GPUs it sleeps between phases: the KV cache is released, and the weights wait in page-locked host memory (level 1) or are
discarded if staged ones will replace them (level 2). On a CPU it stays resident, because vLLM has no sleep mode there, its weights
are packed for the processor's kernels, and there is no device memory to release.

A model whose output matrix is tied to its embedding is loaded untied, with two equal matrices, because vLLM's reloading of tied
weights is silently wrong on CPUs (0.32).
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
from runtime.engines.interface import Engine, Response, Sampling, SamplingBatch
from runtime.engines.memory import BLOCK, SEQUENCES, cache_wanted, device_share
from runtime.engines.model_files import OUTPUT
from runtime.engines.probe import avoid_faults, missing_features
from runtime.memory import resident_gb
from runtime.phases import WorkerDied
from runtime.residency.layout import StagedWeights, WeightLayout
from runtime.residency.staging import WeightStage, pieces

_Method = TypeVar("_Method", bound=Callable[..., Any])

# Number of sequences of full length for which the KV cache on a CPU has space; vLLM queues the others.
_CPU_FULL_SEQUENCES = 64


def process_died(error: BaseException, executor: Any) -> bool:
    """Return whether an error of vLLM is the death of one of its processes, by `EngineDeadError` or by its executor.

    Args:
        error: Error that vLLM raised.
        executor: Executor of vLLM, or None.
    """
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "EngineDeadError":
            return True
        cause = cause.__cause__ or cause.__context__
    return bool(getattr(executor, "is_failed", False))


def dies_with_its_processes(method: _Method) -> _Method:
    """Let a method of an engine raise WorkerDied if a process of the engine has died, so that the job is created again.

    The engine's method `executor()` returns the object that knows the processes.
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
    """Samples with vLLM, in float32 on a CPU or bfloat16 on CUDA devices.

    There can be only one in a process, because vLLM keeps the number of threads and its distributed state for the whole process.

    Args:
        model_dir: Hugging Face directory of the model.
        max_length: Largest number of tokens of a prompt and its response together.
        seed: Seed of vLLM itself. Responses depend on `Sampling.seed`.
        threads: Number of threads of this process on a CPU.
        tensor_parallel: Number of devices that hold the model together. With several, vLLM starts a process for each.
        options: Set options of the job file's `rollout.engine_options`, or None.

    Raises:
        InputError: The directory cannot be used, or the installed vLLM lacks a feature.
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
        self._level = 0  # level of its sleep, 0 while awake
        self._given_back = 0  # bytes on all devices that its sleep has released
        self._devices = tensor_parallel
        self._device_bytes = 0  # bytes in use on all devices
        _environment(threads, self._gpu)
        torch.set_num_threads(threads)
        # On a CPU a prompt is prefilled in one step, because vLLM 0.32 fails there if a prompt with a seed is split over two steps.
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
        # A tied model starts with random weights and gets the true ones, under both names, before anything is sampled.
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
                weight_transfer_config={"backend": "staged"},  # registered by the module `vllm_worker`
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
        self._resident_gb = resident_gb()  # memory of this process before its first sleep

    def _share(self, wanted: float | None, tokens: int) -> dict[str, Any]:
        """Return the options for the share of each GPU, and for the size of the cache if the job needs less than that."""
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        share = device_share(free_bytes, total_bytes, wanted)
        cached = self._files.cached_on_each(self._devices)
        cache = cache_wanted(self._files.parameters, cached, tokens, self._devices, share * total_bytes)
        return {"gpu_memory_utilization": share} | ({"kv_cache_memory_bytes": cache} if cache is not None else {})

    generate = dies_with_its_processes(Engine.generate)
    update_weights = dies_with_its_processes(Engine.update_weights)
    restore = dies_with_its_processes(Engine.restore)

    @dies_with_its_processes
    def offload(self, drop: bool = False) -> Footprint:
        """Offload to host memory. On a CPU everything stays, as the footprint shows; on GPUs CUDA's own memory does."""
        if self._gpu and not self._level:
            awake_bytes = self._device_bytes
            with self._count_memory():
                self._llm.sleep(level=2 if drop else 1)
            self._llm.collective_rpc("release_host_cache")
            self._level, self._given_back = 2 if drop else 1, awake_bytes - self._device_bytes
        return self._footprint()

    def stay(self) -> Footprint:
        """Return the footprint. Weights and KV cache keep all their memory."""
        return self._footprint()

    @property
    def kv_tokens(self) -> int:
        """Number of tokens in the blocks that vLLM has taken for its cache."""
        cache = self._llm.llm_engine.vllm_config.cache_config
        return max(self._max_length, int(cache.num_gpu_blocks * cache.block_size))

    def close(self) -> None:
        """Shut vLLM's engine process down."""
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        gc.collect()
        if self._gpu:
            torch.cuda.empty_cache()

    def executor(self) -> Any:
        """Return vLLM's executor, which starts its processes, or None if it runs in another process or is closed."""
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
    ) -> Iterator[SamplingBatch]:
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
            while engine.has_unfinished_requests():  # so that none is left for the next call
                engine.step()

    def _come_back(self, weights: dict[str, Tensor] | None) -> Footprint:
        if self._level:  # an engine that runs out of memory inside vLLM cannot be used any more
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
        mapped = min(host, grown)  # page-locked by this process; the rest is locked by other processes of the engine
        if not self._gpu:
            return Footprint(self._device_bytes, host, mapped)
        free, total = torch.cuda.mem_get_info()
        peak = self._device_bytes + self._given_back
        return Footprint(self._device_bytes, host, mapped, peak, self._devices * total, total - free)

    @contextmanager
    def _count_memory(self) -> Iterator[None]:
        """Measure the change of the device's free memory in this block.

        The permit excludes other jobs from the device. A process outside of the run may be on it and may release memory. Then the
        result is less accurate, but never negative.
        """
        before = torch.cuda.mem_get_info()[0] if self._gpu else 0
        yield
        after = torch.cuda.mem_get_info()[0] if self._gpu else 0
        self._device_bytes = max(0, self._device_bytes + (before - after) * self._devices)

    def _load(self, weights: dict[str, Tensor]) -> None:
        with self._at_workers(weights) as update_info:
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": update_info})
            self._llm.finish_weight_update()
        if not self._llm.reset_prefix_cache():  # its entries were computed with the old weights
            raise RuntimeError("vLLM did not clear its prefix cache, which holds what the old weights computed")

    @contextmanager
    def _at_workers(self, weights: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
        """Provide weights in the form of `runtime.engines.vllm_worker.StagedUpdate`."""
        alias = (OUTPUT, self._files.embedding) if self._files.tied else None
        if not self._several:
            yield {"weights": weights | ({alias[0]: weights[alias[1]]} if alias else {})}
        elif isinstance(weights, StagedWeights):  # one process for each device, which reads its part from the staged file
            yield {"path": weights.path, "alias": alias}
        else:
            stage, layout = WeightStage(), WeightLayout.of(weights)
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

        seeds = np.random.SeedSequence((sampling.seed, stream, tokens))  # a continuation has another seed
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens - tokens,
            seed=int(seeds.generate_state(1, np.uint64)[0] >> 1) if self._seeded else None,  # 63 bits
            ignore_eos=sampling.ignore_end,
            stop_token_ids=[] if sampling.ignore_end else list(self._files.end_ids),
            logprobs=0,  # only of the sampled token
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )


class _Requests(SamplingBatch):
    """Requests to vLLM's engine.

    Attributes:
        rows: Rows in progress by the name of their request.
        preempted: Number of preemptions of each request that has had any.
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
    """Set vLLM's environment variables, which it reads on import and later. Values set by the user are kept."""
    if not gpu:  # otherwise its sampler would call a C++ compiler, which takes seconds without a gain
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        if "torch._dynamo" in sys.modules:  # it has already read the variable, for example while transformers loaded a model
            from torch._dynamo import config

            config.disable = os.environ["TORCH_COMPILE_DISABLE"] == "1"
    elif find_spec("flashinfer") is None:  # otherwise vLLM (also 0.32) imports it to check whether it can sample with it
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the engine's loop in this process
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the parent process pins this one to its cores
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # all its processes are on this machine
        "NCCL_SOCKET_IFNAME": "=lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def _as_a_guest() -> Iterator[None]:
    """Suppress vLLM's warnings about its own imports, and restore `torch.set_num_threads`, which it replaces."""
    true = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = true
