#!/usr/bin/env bash
# Plan of Astra 0.0: llama-2-7b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp1 dp16 mbs2 zero3 recompute=full method=uniform recompute_layers=1 overlap=grad,param graphs=none params=bf16 grads=bf16 reshard=always
# Verified with accelerate 1.15.0: its own load_config_from_file.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MICRO_BATCH_SIZE=2 SEQ_LENGTH=4096
export GRADIENT_ACCUMULATION_STEPS=32
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$HERE/train.py}"
if [ "$TRAIN_SCRIPT" = "$HERE/train.py" ]; then
  export MODEL="${MODEL:?name the model: a Hugging Face name or folder}"
fi

exec accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
  --gradient_accumulation_steps 32 "$TRAIN_SCRIPT" "$@"
