#!/usr/bin/env bash
# Plan of Astra 0.0: llama-2-7b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp1 dp16 mbs1 zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=bf16 reshard=always
# Verified with DeepSpeed 0.19.8: its own DeepSpeedConfig, for the job's number of ranks.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MICRO_BATCH_SIZE=1 SEQ_LENGTH=4096
export GRADIENT_ACCUMULATION_STEPS=64
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$HERE/train.py}"
if [ "$TRAIN_SCRIPT" = "$HERE/train.py" ]; then
  export MODEL="${MODEL:?name the model: a Hugging Face name or folder}"
fi

exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$TRAIN_SCRIPT" --deepspeed "$HERE/ds_config.json" "$@"
