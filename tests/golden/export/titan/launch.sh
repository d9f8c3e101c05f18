#!/usr/bin/env bash
# Plan of Astra 0.0: llama-3.1-8b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp2 pp2 dp4 mbs1 sp zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=never layers=15,17
# Verified with torchtitan 0.3.0 with torch 2.13.0: its own config manager, ParallelDims and model, on the meta device.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"

exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m torchtitan.train --module plan --config plan "$@"
