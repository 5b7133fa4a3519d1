#!/usr/bin/env bash
# A script that uses rollmux_trl.GRPOTrainer, on eight GPUs, in turns with other jobs: examples/launch/trl.sh SCRIPT.py
# With vLLM its GRPOConfig has use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=True.
set -euo pipefail
script=$(realpath "$1")
cd "$(dirname "$0")/.."
exec rollmux exec gpu_jobs.yaml --job trl -- torchrun --nproc-per-node 8 "$script" "${@:2}"
