#!/usr/bin/env bash
# GRPO in verl with FSDP, in turns with other jobs: examples/launch/verl_fsdp.sh MODEL TRAIN.parquet TEST.parquet
set -euo pipefail
jobs=$(dirname "$(realpath "$0")")/../gpu_jobs.yaml
exec rollmux exec "$jobs" --job verl-fsdp -- python -m verl.trainer.main_ppo \
    trainer.v1.trainer_mode=rollmux \
    trainer.n_gpus_per_node=8 \
    algorithm.adv_estimator=grpo \
    data.train_files="$2" data.val_files="$3" \
    actor_rollout_ref.model.path="$1" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.free_cache_engine=True \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    "${@:4}"
