#!/usr/bin/env bash
# Plan of Astra 0.0: llama-2-7b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp1 dp16 mbs1 zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=always
# Verified with megatron-core 0.19.2: its own parse_args, validate_args, TransformerConfig and GPTModel.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
MEGATRON_DIR="${MEGATRON_DIR:-Megatron-LM}"

export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16

MODEL_ARGS=(
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 11008
  --num-attention-heads 32
  --kv-channels 128
  --vocab-size 32000
  --make-vocab-size-divisible-by 128
  --max-position-embeddings 4096
  --seq-length 4096
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --position-embedding-type rope
  --rotary-base 10000
  --disable-bias-linear
  --untie-embeddings-and-output-weights
)

PARALLEL_ARGS=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 1
  --context-parallel-size 1
  --use-distributed-optimizer
  --use-megatron-fsdp
  --data-parallel-sharding-strategy optim_grads_params
  --ckpt-format fsdp_dtensor
  --no-gradient-accumulation-fusion
  --init-model-with-meta-device
  --distributed-backend nccl
)

BATCH_ARGS=(
  --micro-batch-size 1
  --global-batch-size 1024
  --train-samples 244140625
)

PRECISION_ARGS=(
  --bf16
  --transformer-impl transformer_engine
  --attention-backend auto
)

MEMORY_ARGS=(
  --optimizer adam
)

OVERLAP_ARGS=(
  --overlap-grad-reduce
  --overlap-param-gather
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl native
)

# Yours to choose: a plan does not depend on them.
TRAINING_ARGS=(
  --lr "${LR:-1e-4}" --min-lr 0 --lr-decay-style cosine --lr-warmup-fraction 0.01
  --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.01
  --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --log-interval 1 --log-throughput
  --distributed-timeout-minutes 30
)
# Data: mock unless DATA_PATH names a preprocessed dataset.
if [ -n "${DATA_PATH:-}" ]; then
  DATA_ARGS=(--data-path "$DATA_PATH" --split "${SPLIT:-99,1,0}")
  DATA_ARGS+=(--tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}")
else
  DATA_ARGS=(--mock-data --tokenizer-type "${TOKENIZER_TYPE:-NullTokenizer}")
fi
if [ -n "${TOKENIZER_MODEL:-}" ]; then DATA_ARGS+=(--tokenizer-model "$TOKENIZER_MODEL"); fi
if [ -n "${SAVE:-}" ]; then DATA_ARGS+=(--save "$SAVE" --load "$SAVE" --save-interval "${SAVE_INTERVAL:-1000}"); fi

exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_DIR/pretrain_gpt.py" "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${BATCH_ARGS[@]}" "${PRECISION_ARGS[@]}" "${MEMORY_ARGS[@]}" "${OVERLAP_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
