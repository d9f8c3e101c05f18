#!/usr/bin/env bash
# Plan of Astra 0.0: qwen3-8b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp2 pp2 dp4 mbs1 sp zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=never layers=17,19
# Verified with torch 2.13.0: run by torchrun on 1 to 4 CPU processes, the losses those of one.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$HERE/train.py" "$@"
