#!/usr/bin/env bash
# A script that uses rollmux_trl.GRPOTrainer, on eight GPUs, in turns with other jobs: examples/launch/trl.sh SCRIPT.py
# With vLLM its GRPOConfig has use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=True.
set -euo pipefail
script=$(realpath "$1")
jobs=$(dirname "$(realpath "$0")")/../gpu_jobs.yaml
exec rollmux exec "$jobs" --job trl -- torchrun --nproc-per-node 8 "$script" "${@:2}"
