#!/usr/bin/env bash
# Plan of Astra 0.0: llama-2-13b on 8xA100-SXM4-40GB, about 1 s per step.
# Strategy: tp1 pp1 dp8 mbs1 zero1 recompute=none offload=optimizer overlap=grad graphs=none params=bf16 grads=bf16
# Verified with DeepSpeed 0.19.8: its own DeepSpeedConfig, for the job's number of ranks.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MICRO_BATCH_SIZE=1 SEQ_LENGTH=4096
export GRADIENT_ACCUMULATION_STEPS=128
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$HERE/train.py}"
if [ "$TRAIN_SCRIPT" = "$HERE/train.py" ]; then
  export MODEL="${MODEL:?name the model: a Hugging Face name or folder}"
fi

exec torchrun --nnodes 1 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$TRAIN_SCRIPT" --deepspeed "$HERE/ds_config.json" "$@"
