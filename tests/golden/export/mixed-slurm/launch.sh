#!/usr/bin/env bash
# Plan of Astra 0.0: mixtral-8x7b on 8xH100-SXM5-80GB + 8xA100-SXM4-80GB, about 1 s per step.
# Strategy: tp2 pp2 ep4 dp4 mbs1 sp zero1 recompute=none overlap=grad,param dispatch=alltoall graphs=none params=bf16 grads=fp32 layers=20,12
# Verified with megatron-core 0.19.2: its own parse_args, validate_args, TransformerConfig and GPTModel.
# Node order (NODE_RANK) decides which GPUs hold which stages:
#   nodes 0 to 0: H100-SXM5-80GB, 8 each
#   nodes 1 to 1: A100-SXM4-80GB, 8 each
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
MEGATRON_DIR="${MEGATRON_DIR:-Megatron-LM}"

export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL_ARGS=(
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --kv-channels 128
  --vocab-size 32000
  --make-vocab-size-divisible-by 128
  --max-position-embeddings 32768
  --seq-length 4096
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --position-embedding-type rope
  --rotary-base 1000000
  --group-query-attention
  --num-query-groups 8
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --num-experts 8
  --moe-router-topk 2
  --moe-ffn-hidden-size 14336
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 1e-3
  --moe-grouped-gemm
  --moe-permute-fusion
  --moe-token-dispatcher-type alltoall
)

PARALLEL_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Et*20|t*12L'
  --context-parallel-size 1
  --expert-model-parallel-size 4
  --expert-tensor-parallel-size 1
  --sequence-parallel
  --use-distributed-optimizer
  --distributed-backend nccl
)

BATCH_ARGS=(
  --micro-batch-size 1
  --global-batch-size 1024
  --train-iters 1000
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
