"""slime's synchronous training as a job that takes turns: `python -m rollmux_slime ...` in place of `python train.py ...`.

It makes the calls that slime's own `train.py` makes, each in its turn:

- Colocated (`--colocate`, which offloads): trainer and engines share their GPUs, so the service's cluster has one pool
  (`one_device: true`). The turn of `rollout` brings the engines back with new weights, samples, and puts them away; the turn of
  `training` trains and saves.
- Separate: engines and trainer keep their GPUs' memory. New weights need both sides at once: a turn of `sync`.
- An evaluation is a rollout that counts no iteration.

Read with slime of 2026-08-21 (commit 624b824). A critic and `--release-train` are refused.
"""

from __future__ import annotations

from typing import Any

import ray
import rollmux_client
from slime.observability.logging_utils import configure_logger, finish_tracking, init_tracking
from slime.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models
from slime.utils.arguments import parse_args
from slime.utils.misc import should_run_periodic_action

__all__ = ["train"]


def train(args: Any) -> None:
    """Train as slime does, in turns with other jobs.

    Args:
        args: of slime's `parse_args`.

    Raises:
        ValueError: they ask for what cannot be done in turns.
    """
    if args.use_critic or args.release_train:
        raise ValueError("rollmux_slime: a critic and --release-train are not supported")
    if args.offload_rollout != args.offload_train:
        raise ValueError("rollmux_slime: rollout and training are offloaded both (--colocate), or neither")
    with rollmux_client.attach() as job:
        configure_logger()
        groups = create_placement_groups(args)
        init_tracking(args)
        manager, per_epoch = create_rollout_manager(args, groups["rollout"])
        actor, _ = create_training_models(args, groups, manager)
        engines = _Engines(manager, actor, args.offload_rollout)
        for k in range(args.start_rollout_id, args.num_rollout):
            if args.eval_interval is not None and k == 0 and not args.skip_eval_before_train:
                _evaluate(job, engines, k)
            with job.phase("rollout"), engines:
                samples = ray.get(manager.generate.remote(k))
            with job.phase("training"):
                ray.get(actor.async_train(k, samples))
                if should_run_periodic_action(k, args.save_interval, per_epoch, args.num_rollout):
                    actor.save_model(k, force_sync=k == args.num_rollout - 1)
                    if args.rollout_global_dataset:
                        ray.get(manager.save.remote(k))
                if not args.offload_train:
                    actor.clear_memory()
            engines.have_weights = False
            if not args.offload_rollout:
                with job.phase("sync"):
                    engines.update()
            job.iteration += 1
            if should_run_periodic_action(k, args.eval_interval, per_epoch):
                _evaluate(job, engines, k)
        ray.get(manager.dispose.remote())
        finish_tracking(args)


def _evaluate(job: rollmux_client.Job, engines: _Engines, k: int) -> None:
    with job.phase("rollout", extra=True), engines:
        ray.get(engines.manager.eval.remote(k))


class _Engines:
    """The engines, as a context in which they are on their GPUs and have the trainer's weights.

    Attributes:
        have_weights: they have the last ones.
    """

    def __init__(self, manager: Any, actor: Any, offloads: bool) -> None:
        self.manager, self._actor, self._offloads = manager, actor, offloads
        self.have_weights = False

    def update(self) -> None:
        """Give them the trainer's weights."""
        self._actor.update_weights()
        self.have_weights = True

    def __enter__(self) -> None:
        if self._offloads:
            ray.get(self.manager.onload_weights.remote())
        if self._offloads or not self.have_weights:
            self.update()
        if self._offloads:
            ray.get(self.manager.onload_kv.remote())

    def __exit__(self, *_: Any) -> None:
        if self._offloads:
            ray.get(self.manager.offload.remote())


if __name__ == "__main__":
    train(parse_args())
