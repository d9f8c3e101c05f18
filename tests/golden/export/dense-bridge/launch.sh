#!/usr/bin/env bash
# Plan of Astra 0.0: llama-3.1-70b on 64xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp8 pp4 dp2 mbs1 sp zero1 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32
# Verified with Megatron-Bridge 0.6.2: its own recipes, overrides and configuration, finalized by megatron-core 0.19.2.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun --nnodes 8 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$HERE/train.py" "$@"
