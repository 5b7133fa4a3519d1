#!/usr/bin/env bash
# GRPO in verl with Megatron, in turns with other jobs: examples/launch/verl_megatron.sh MODEL TRAIN.parquet TEST.parquet
set -euo pipefail
jobs=$(dirname "$(realpath "$0")")/../gpu_jobs.yaml
exec rollmux exec "$jobs" --job verl-megatron -- python -m verl.trainer.main_ppo \
    model_engine=megatron \
    trainer.v1.trainer_mode=rollmux \
    trainer.n_gpus_per_node=8 \
    algorithm.adv_estimator=grpo \
    data.train_files="$2" data.val_files="$3" \
    actor_rollout_ref.model.path="$1" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.free_cache_engine=True \
    actor_rollout_ref.actor.strategy=megatron \
    actor_rollout_ref.actor.megatron.param_offload=True \
    actor_rollout_ref.actor.megatron.optimizer_offload=True \
    actor_rollout_ref.actor.megatron.grad_offload=True \
    actor_rollout_ref.ref.megatron.param_offload=True \
    "${@:4}"
