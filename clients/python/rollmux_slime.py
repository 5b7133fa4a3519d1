"""slime's synchronous training as a job that takes turns: `python -m rollmux_slime ...` instead of `python train.py ...`.

It makes the same calls as slime's own `train.py`, each in its turn:

- Everything is loaded and started in a turn of `init`. It ends when engines and trainer have left the GPUs, as far as slime
  offloads them.
- Colocated (`--colocate`, which offloads both): trainer and engines share their GPUs, so the service's cluster has one pool
  (`one_device: true`). The turn of `rollout` brings the engines back with new weights, samples, and offloads them. The turn of
  `training` trains and saves. Offloaded engines lose their weights, so there is no turn of `sync`.
- Separate: the engines keep their GPUs' memory, because slime offloads only engines whose GPUs the trainer uses too. The trainer
  leaves its GPUs with `--offload-train`. New weights, including the first ones, need both sides at once: a turn of `sync`.
- An evaluation is a rollout that counts as no iteration.
- The job continues at `start_rollout_id`. Iterations that the service has counted since that checkpoint are done again and count
  once.

Written for slime of 2026-08-21 (commit 624b824a898ab0ec1fcb4d373004c7f3852bf515). A critic and `--release-train` are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
import rollmux_client
import rollmux_devices
from slime.observability.logging_utils import configure_logger, finish_tracking, init_tracking
from slime.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models
from slime.utils.arguments import parse_args
from slime.utils.misc import should_run_periodic_action

__all__ = ["train"]


def train(args: Any) -> None:
    """Train as slime does, in turns with other jobs.

    Args:
        args: Arguments from slime's `parse_args`.

    Raises:
        ValueError: The arguments ask for something that is not possible in turns.
    """
    _check(args)
    with rollmux_client.attach() as job:
        configure_logger()
        with _turn(job, "init"):
            manager, actor, per_epoch = _load(args)
        job.check_total(args.num_rollout)
        job.continue_from(args.start_rollout_id)
        engines = _Engines(manager, actor, args.colocate)
        if not args.colocate:
            with _turn(job, "sync", iteration=job.iteration - 1):
                actor.update_weights()
        for k in range(args.start_rollout_id, args.num_rollout):
            if args.eval_interval is not None and k == 0 and not args.skip_eval_before_train:
                _evaluate(job, engines, k)
            with _turn(job, "rollout"), engines:
                samples = ray.get(manager.generate.remote(k))
            with _turn(job, "training"):
                ray.get(actor.async_train(k, samples))
                if should_run_periodic_action(k, args.save_interval, per_epoch, args.num_rollout):
                    actor.save_model(k, force_sync=k == args.num_rollout - 1)
                    if args.rollout_global_dataset:
                        ray.get(manager.save.remote(k))
                if not args.offload_train:
                    actor.clear_memory()
            if not args.colocate:
                with _turn(job, "sync"):
                    actor.update_weights()
            job.iteration += 1
            if should_run_periodic_action(k, args.eval_interval, per_epoch):
                _evaluate(job, engines, k)
        ray.get(manager.dispose.remote())
        finish_tracking(args)


def _check(args: Any) -> None:
    """Check that the training that the arguments ask for is possible in turns."""
    if args.use_critic or args.release_train:
        raise ValueError("rollmux_slime: a critic and --release-train are not supported")
    if args.colocate and not (args.offload_rollout and args.offload_train):
        raise ValueError("rollmux_slime: --colocate needs both sides offloaded: leave out --no-offload-train, --no-offload-rollout")


def _load(args: Any) -> tuple[Any, Any, Any]:
    """Load everything, offload it as far as possible, and return the engines' manager, the trainer, and rollouts per epoch."""
    groups = create_placement_groups(args)
    init_tracking(args)
    manager, per_epoch = create_rollout_manager(args, groups["rollout"])
    actor, _ = create_training_models(args, groups, manager)
    # Engines that can be offloaded are by now. A second release would end them, so another request is used to wait for the manager.
    ray.get(manager.get_updatable_engines_and_lock.remote())
    if not args.offload_train:
        actor.clear_memory()
    return manager, actor, per_epoch


def _evaluate(job: rollmux_client.Job, engines: _Engines, k: int) -> None:
    with _turn(job, "rollout", extra=True), engines:
        ray.get(engines.manager.eval.remote(k))


@contextlib.contextmanager
def _turn(job: rollmux_client.Job, phase: str, iteration: int | None = None, extra: bool = False) -> Iterator[None]:
    """Hold a turn, and report the job's memory on the GPUs at its end."""
    with job.phase(phase, iteration, extra) as turn:
        yield
        rollmux_devices.report(job, turn)


class _Engines:
    """Context in which the engines are on their GPUs. Engines that share GPUs with the trainer get its weights first."""

    def __init__(self, manager: Any, actor: Any, colocated: bool) -> None:
        self.manager, self._actor, self._colocated = manager, actor, colocated

    def __enter__(self) -> None:
        if self._colocated:
            ray.get(self.manager.onload_weights.remote())
            self._actor.update_weights()
            ray.get(self.manager.onload_kv.remote())

    def __exit__(self, *_: Any) -> None:
        if self._colocated:
            ray.get(self.manager.offload.remote())


if __name__ == "__main__":
    train(parse_args())
