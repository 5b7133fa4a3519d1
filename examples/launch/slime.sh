#!/usr/bin/env bash
# slime on the GPUs that trainer and engines share, in turns with other jobs: examples/launch/slime.sh MODEL MODEL_torch_dist DATA.jsonl
# followed by the model's own arguments (scripts/models of slime). Megatron-LM and slime are on PYTHONPATH.
set -euo pipefail
jobs=$(dirname "$(realpath "$0")")/../gpu_jobs.yaml
exec rollmux exec "$jobs" --job slime -- python -m rollmux_slime \
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --colocate \
    --advantage-estimator grpo \
    --hf-checkpoint "$1" --ref-load "$2" \
    --prompt-data "$3" --input-key prompt --label-key label --rm-type math \
    --num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 \
    --rollout-num-gpus-per-engine 1 \
    "${@:4}"
