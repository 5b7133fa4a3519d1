"""Keys of a job for its two phases, with settings of its engines, named nodes and measurement."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, Positive, Unwritten
from rollmux_env.validation_errors import field_error


class EngineOptions(FileModel):
    """Settings of vLLM. RollMux chooses those that are null."""

    gpu_memory: Annotated[float, Field(ge=0.05, le=0.95)] | None = None
    """Largest share of each GPU for an awake engine; by default 0.8, or what is free."""
    enforce_eager: bool | None = None
    """For GPUs: whether to use no CUDA graphs; by default false."""
    max_num_seqs: Annotated[Count, Field(le=4096)] | None = None
    """Largest number of sequences at once; by default 256, on GPUs at most the responses of a round."""
    max_model_len: Count | None = None
    """Longest prompt and response, tokens; by default, and at least, `max_prompt_tokens` + `max_tokens`."""

    seeded: bool | None = None
    """Whether each response has its own seed; by default true. With false, vLLM draws for all at once, quicker on GPUs."""

    def values_set(self) -> dict[str, Any]:
        """Return the settings that are not None, by name."""
        return self.model_dump(exclude_none=True)


Word = Annotated[str, Field(min_length=1, max_length=4096)]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


_Memory = Annotated[NonNegative, BeforeValidator(lambda value: 0.0 if value is None else value)]  # null means 0


class PhaseSpec(FileModel):
    """Requirements of a phase on its pool."""

    nodes: NodeCount = 1
    """Number of nodes of the pool."""


class StatedPhase(PhaseSpec):
    """Requirements of a phase of an attached job or a command, with figures that the runtime does not measure."""

    worst_case_s: Annotated[Positive | None, Field(exclude_if=lambda value: value is None)] = None
    """Longest duration of the phase, seconds; null if a profile measures it."""
    host_memory_gb: _Memory = 0.0
    """Host memory that keeps the job resident, GB per node."""
    device_gb: _Memory = 0.0
    """Memory that the job keeps on a node's GPUs between its phases, GB."""


def _of_a_run(policy: str) -> str:
    if policy not in ("plain", "tail-batching"):
        from policies.named import is_own
        from policies.rollout.places import make_at

        if is_own(policy):  # the user's code, which only the job's own processes import
            if "+" in policy:
                raise ValueError("a policy of your own is combined with no other")
            return policy

        if policy.startswith("tail-batching,"):
            raise ValueError("takes tail-batching without options; rollout.eta says how much is launched")
        try:
            make_at(policy, "run")
        except InputError as error:
            raise ValueError(str(error)) from None
    return policy


class EngineSpec(PhaseSpec):
    """Requirements on the rollout pool of a job whose engines the runtime starts."""

    engine: Literal["auto", "vllm", "torch"] = "auto"
    """Engine that samples; `auto` is vLLM if it is installed and works, else torch."""
    tensor_parallel: Count = 1
    """Number of GPUs of one copy of the model; with `sizes`, on a node without GPUs, of cores."""
    engine_options: EngineOptions = EngineOptions()
    """Settings of vLLM."""

    @model_validator(mode="after")
    def _options_of_its_engine(self) -> EngineSpec:
        if self.engine == "torch":
            for field in self.engine_options.values_set():
                raise field_error("is an option of vLLM; the engine is torch", "engine_options", field)
        return self


class RolloutSpec(EngineSpec):
    """Requirements of a built-in job on the rollout pool."""

    sizes: Unwritten[Annotated[tuple[Count, ...], Field(strict=False)]] = ()
    """Other sizes of engines that the rollout policy may choose."""
    policy: Annotated[str, AfterValidator(_of_a_run)] = "plain"
    """Rollout policy that works in runs, or module:Class of the user."""
    interruptible: Unwritten[bool] = False
    """With staleness: whether responses continue with new weights in the middle."""
    eta: Annotated[float, Field(gt=1, le=2)] = 1.25
    """For `tail-batching`: factor of the prompts and responses of a short round."""

    @model_validator(mode="after")
    def _fits(self) -> RolloutSpec:
        if self.policy != "tail-batching" and "eta" in self.model_fields_set:
            raise field_error("goes with the policy tail-batching", "eta")
        if len({*self.all_sizes}) < len(self.all_sizes):
            raise field_error(f"must be different, and others than tensor_parallel, {self.tensor_parallel}", "sizes")
        if self.policy not in ("plain", "tail-batching") or self.sizes:
            from policies.rollout.places import why_not_sizes

            if problem := why_not_sizes(self.policy, self.all_sizes):
                raise field_error(problem, "sizes" if self.sizes else "policy")
        return self

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """Sizes of the engines that are built, the configured one first."""
        return (self.tensor_parallel, *self.sizes)


class TrainingSpec(PhaseSpec):
    """Requirements of a built-in job on the training pool. In a larger group it trains on all of the group's nodes."""

    cpu_offload: bool = False
    """For GPUs: whether weights, gradients and Adam's moments stay in host memory (16 bytes per parameter)."""


class NodeNames(FileModel):
    """Names of nodes of the cluster."""

    rollout: Annotated[tuple[NodeName, ...], Field(strict=False)] = ()
    """Rollout nodes; none with `one_device`."""
    training: Annotated[tuple[NodeName, ...], Field(strict=False, min_length=1)]
    """Training nodes: all nodes of a group, or free ones."""


class ProfileSpec(FileModel):
    """Measurement of a job that does not state its worst case."""

    iterations: Count = 3
    """Number of first iterations that are measured, and count."""
