#!/usr/bin/env bash
# Plan of Astra 0.0: deepseek-v3 on 1024xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp16 ep64 dp64 mbs1 zero1 recompute=full method=uniform recompute_layers=1 overlap=grad,param dispatch=deepep graphs=none params=bf16 grads=fp32 layers=3,4*14,2
# Verified with megatron-core 0.19.2: its own parse_args, validate_args, TransformerConfig and GPTModel.
set -euo pipefail

NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
MEGATRON_DIR="${MEGATRON_DIR:-Megatron-LM}"

export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL_ARGS=(
  --num-layers 61
  --hidden-size 7168
  --ffn-hidden-size 18432
  --num-attention-heads 128
  --kv-channels 128
  --vocab-size 129280
  --make-vocab-size-divisible-by 128
  --max-position-embeddings 163840
  --seq-length 4096
  --normalization RMSNorm
  --norm-epsilon 1e-06
  --swiglu
  --position-embedding-type rope
  --rotary-base 10000
  --multi-latent-attention
  --q-lora-rank 1536
  --kv-lora-rank 512
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --rope-type yarn
  --rotary-scaling-factor 40.0
  --mscale 1.0
  --mscale-all-dim 1.0
  --qk-layernorm
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-router-score-function sigmoid
  --moe-router-topk-scaling-factor 2.5
  --moe-router-num-groups 8
  --moe-router-group-topk 4
  --moe-router-dtype fp32
  --moe-router-enable-expert-bias
  --moe-router-load-balancing-type seq_aux_loss
  --moe-aux-loss-coeff 1e-4
  --moe-grouped-gemm
  --moe-permute-fusion
  --moe-shared-expert-intermediate-size 2048
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-token-dispatcher-type flex
  --moe-flex-dispatcher-backend deepep
)

PARALLEL_ARGS=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 16
  --pipeline-model-parallel-layout 'Et*3|(t*4|)*14t*2L'
  --context-parallel-size 1
  --expert-model-parallel-size 64
  --expert-tensor-parallel-size 1
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
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
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

exec torchrun --nnodes 128 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_DIR/pretrain_gpt.py" "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${BATCH_ARGS[@]}" "${PRECISION_ARGS[@]}" "${MEMORY_ARGS[@]}" "${OVERLAP_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
