"""What a job asks of the two pools, and which nodes it has or how it is measured where the runtime does not run it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, Positive, Unwritten
from rollmux_env.validation_errors import field_error


class EngineOptions(FileModel):
    """Settings of vLLM; what is not set is RollMux's own choice."""

    gpu_memory: Annotated[float, Field(ge=0.05, le=0.95)] | None = None
    """Share of each GPU that the awake engine takes, its weights included; else 0.8, or what sleeping processes leave free."""
    enforce_eager: bool | None = None
    """On GPUs: no CUDA graphs, which take memory and time at the start and make decoding quicker."""
    max_num_seqs: Annotated[Count, Field(le=4096)] | None = None
    """Sequences that are sampled at a time; else 256."""
    max_model_len: Count | None = None
    """Tokens of the longest prompt and response together that vLLM makes room for; else what the job's algorithm needs."""

    seeded: bool | None = None
    """Each response has a seed of its own (the default), so that it does not depend on what is sampled beside it. Without them a
    sampler on a GPU draws for all sequences at once."""

    def values_set(self) -> dict[str, Any]:
        """Those that are set, by name."""
        return self.model_dump(exclude_none=True)


Word = Annotated[str, Field(min_length=1, max_length=4096)]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


_Memory = Annotated[NonNegative, BeforeValidator(lambda value: 0.0 if value is None else value)]  # null is none


class PhaseSpec(FileModel):
    """What a job asks of a pool."""

    nodes: NodeCount = 1
    """Nodes of the pool."""


class StatedPhase(PhaseSpec):
    """What an attached job or a command asks of a pool, and says of itself, since the runtime does not measure it."""

    worst_case_s: Annotated[Positive | None, Field(exclude_if=lambda value: value is None)] = None
    """The longest duration of the phase, seconds; left out where there is a profile."""
    host_memory_gb: _Memory = 0.0
    """Host memory that keeps the job resident, GB per node."""
    device_gb: _Memory = 0.0
    """Memory of a node's GPUs that the job keeps between its phases, GB."""


def _of_a_run(policy: str) -> str:
    if policy not in ("plain", "tail-batching"):
        from policies.named import is_own
        from policies.rollout.places import make_at

        if is_own(policy):  # the user's code: imported in the job's own processes alone
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
    """What a job whose engines the runtime starts asks of the rollout pool."""

    engine: Literal["auto", "vllm", "torch"] = "auto"
    """What samples; auto is vLLM where it is installed and works."""
    tensor_parallel: Count = 1
    """GPUs of one copy of the model; with `sizes`, on a node of CPU cores, the cores of one."""
    engine_options: EngineOptions = EngineOptions()
    """Settings of vLLM."""

    @model_validator(mode="after")
    def _options_of_its_engine(self) -> EngineSpec:
        if self.engine == "torch":
            for field in self.engine_options.values_set():
                raise field_error("is an option of vLLM; the engine is torch", "engine_options", field)
        return self


class RolloutSpec(EngineSpec):
    """What a built-in job asks of the rollout pool."""

    sizes: Unwritten[Annotated[tuple[Count, ...], Field(strict=False)]] = ()
    """Other sizes of engines that a policy may choose; engines of all sizes are built beforehand."""
    policy: Annotated[str, AfterValidator(_of_a_run)] = "plain"
    """A rollout policy that works in runs: plain, tail-batching, learned:default, ..., or module:Class of yours."""
    interruptible: Unwritten[bool] = False
    """With a staleness: whether new weights are taken in the middle of responses, which then continue with them."""
    eta: Annotated[float, Field(gt=1, le=2)] = 1.25
    """tail-batching: how many times as many prompts and responses a short round launches."""

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
        """Those of engines that are built, the configured one first."""
        return (self.tensor_parallel, *self.sizes)


class TrainingSpec(PhaseSpec):
    """What a built-in job asks of the training pool; in a larger group it trains on all of the group's nodes."""

    cpu_offload: bool = False
    """Whether weights, gradients and Adam's moments stay in host memory, where Adam steps; on CPU nodes they always do."""


class NodeNames(FileModel):
    """Nodes of the cluster by name."""

    rollout: Annotated[tuple[NodeName, ...], Field(strict=False)] = ()
    """Rollout nodes; none with one_device."""
    training: Annotated[tuple[NodeName, ...], Field(strict=False, min_length=1)]
    """Training nodes: all of a group's, or free ones."""


class ProfileSpec(FileModel):
    """How a job is measured that does not state its worst case."""

    iterations: Count = 3
    """Its first iterations, which count; it is planned with the longest seconds of its phases in them."""
