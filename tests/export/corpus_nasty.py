# ruff: noqa: E501 - lines as scripts have them
"""Scripts and configurations in the style of public ones, written to be hard: each reads right or is refused."""

from __future__ import annotations

from typing import Final

from tests.export.corpus import Entry, conf, sh

# Eight billion parameters in Megatron's words, 32 layers.
MODEL: Final = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256 "
    "--make-vocab-size-divisible-by 1 --bf16 --micro-batch-size 1"
)
SMALL: Final = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MODEL} --global-batch-size 64"

NASTY: Final[list[Entry]] = [
    sh("a size by case, degrees by arithmetic", """#!/bin/bash
set -euo pipefail
MODEL_SIZE=${MODEL_SIZE:-8B}
case "${MODEL_SIZE}" in
  1B|1b) NL=16; HS=2048;;
  8[bB]) NL=32; HS=4096; TP=2 ;;
  *) echo "unknown"; exit 1;;
esac
GPUS_PER_NODE=8
NNODES=${NNODES:=4}
WORLD_SIZE=$((GPUS_PER_NODE*NNODES))
PP=$(( WORLD_SIZE / 16 ))
DP=$((WORLD_SIZE/(TP*PP)))
GBS=$(( DP * 1 * 64 ))
torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES} pretrain_gpt.py \\
  --num-layers $NL --hidden-size $HS --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --micro-batch-size 1 --global-batch-size $GBS \\
  --vocab-size 32000 --bf16 --use-distributed-optimizer "$@"
""", tp=2, pp=2, gpus=32, dp=8, batch=512, zero=1, depth=32),
    sh("the last of two equal flags", f"""
COMMON="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 1 --micro-batch-size 4"
{SMALL} $COMMON --global-batch-size 128 --tensor-model-parallel-size 4 --micro-batch-size=2
""", tp=4, mbs=2, dp=4, gpus=16, batch=128),
    sh("a flag cut short, as argparse allows", f"{SMALL} --tensor-model-parallel 2 --pipeline-model-parallel-size 2\n",
       refused="--tensor-model-parallel"),
    sh("arrays that grow by tests", f"""
ARGS=( {MODEL} )
USE_MOE=0
ARGS+=(--global-batch-size 256)
if [[ $USE_MOE -eq 1 ]]; then ARGS+=(--num-experts 8 --expert-model-parallel-size 8); fi
if [[ "${{SP:-1}}" == "1" && 4 -gt 1 ]]; then ARGS+=(--sequence-parallel); fi
[[ -n "${{RECOMPUTE:-}}" ]] && ARGS+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
ARGS+=(
   --tensor-model-parallel-size 4   # tp
   # --pipeline-model-parallel-size 8
   --pipeline-model-parallel-size 2
)
srun -N 8 --ntasks-per-node=8 --gpus-per-node=8 python -u pretrain_gpt.py "${{ARGS[@]}}"
""", tp=4, pp=2, sp=True, gpus=64, dp=8, recompute="none"),
    sh("a shell in a container under srun", f"""#!/bin/bash
#SBATCH --nodes=16 --ntasks-per-node=1 --gres=gpu:8
run_cmd="torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id $RANDOM /opt/megatron-lm/pretrain_gpt.py {MODEL} \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 \\
  --sequence-parallel --global-batch-size 1024 --use-distributed-optimizer --overlap-grad-reduce"
srun --container-image nvcr.io/nvidia/pytorch:24.01-py3 --container-mounts "/lustre:/lustre" sh -c "cd /opt && ${{run_cmd}}"
""", tp=8, pp=4, vp=2, dp=4, gpus=128, zero=1, sp=True),
    sh("options by while and shift", f"""
TP=1; PP=1; MBS=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2;;
    --pp) PP="$2"; shift; shift;;
    --mbs=*) MBS="${{1#*=}}"; shift;;
    *) shift;;
  esac
done
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {MODEL} --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size $PP --micro-batch-size $MBS --global-batch-size 256
""", None, "--tp", "4", "--pp", "2", "--mbs=2", tp=4, pp=2, mbs=2, gpus=32),
    sh("options by getopts", f"""
TP=1; PP=1
while getopts "t:p:" opt; do
  case $opt in
    t) TP=$OPTARG ;;
    p) PP=$OPTARG ;;
  esac
done
{SMALL} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
""", None, "-t", "4", "-p", "2", refused="$opt"),
    sh("a configuration written first", """
ZERO=3
GRAD_ACC=4
BS=2
cat > ds.json <<END
{
  "train_micro_batch_size_per_gpu": $BS,
  "gradient_accumulation_steps": $GRAD_ACC,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": $ZERO, "offload_optimizer": {"device": "cpu"}, "overlap_comm": true}
}
END
deepspeed --include localhost:0,1,2,3 --master_port 29600 finetune.py --deepspeed ds.json --model_name_or_path meta-llama/Llama-2-7b-hf \\
  --bf16 True --per_device_train_batch_size $BS --gradient_accumulation_steps $GRAD_ACC
""", zero=3, gpus=4, dp=4, offload="optimizer", mbs=2, batch=32),
    sh("a configuration that lies elsewhere", """
deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed cfg/zero1.json --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --fp16
""", gpus=16, zero=1, told="deepspeed cfg/zero1.json, read by its name as ZeRO stage 1"),
    sh("sharded and offloaded by the Trainer", """
export WANDB_PROJECT=x
NCCL_DEBUG=INFO OMP_NUM_THREADS=8 \\
torchrun \\
    --nnodes=$SLURM_JOB_NUM_NODES \\
    --nproc_per_node=8 \\
    --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500 \\
    train.py \\
    --model_name_or_path mistralai/Mistral-7B-v0.1 \\
    --bf16 True \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 \\
    --gradient_checkpointing True \\
    --fsdp "full_shard auto_wrap offload" \\
    --fsdp_transformer_layer_cls_to_wrap MistralDecoderLayer \\
    --model_max_length 4096
""", 32, zero=3, dp=32, mbs=2, recompute="full", batch=512),
    conf("a neox file with comments and a comma too many", "20B.yml", """
# GPT-NeoX style
{
   "pipe_parallel_size": 4,
   "model_parallel_size": 2,   # tp
   "num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64,
   "seq_length": 2048, "max_position_embeddings": 2048,
   "no_weight_tying": true,
   "train_micro_batch_size_per_gpu": 4,
   "gradient_accumulation_steps": 32,
   "data_impl": "mmap",
   "zero_optimization": { "stage": 1, "allgather_bucket_size": 1260000000 },
   "fp16": { "enabled": true, "loss_scale": 0 },
   "checkpoint_activations": true, "checkpoint_num_layers": 1, "partition_activations": false,
}
""", 96, vocab=50432, pp=4, tp=2, dp=12, zero=1, mbs=4, recompute="full", batch=1536, precision="fp16"),
    conf("quantised weights and adapters", "qlora.yml", """
base_model: meta-llama/Llama-3.1-70B
load_in_4bit: true
adapter: qlora
lora_r: 64
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_8bit
bf16: auto
gradient_checkpointing: true
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: true
""", 8, zero=3, dp=8, task="lora", lora_rank=64, batch=32, recompute="full"),
    conf("a DeepSpeed file that lies elsewhere", "full.yaml", """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/custom_config.json
cutoff_len: 16384
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
enable_liger_kernel: true
flash_attn: fa2
""", 8, refused="custom_config.json"),
    conf("reduce-scatter for tensor parallelism", "nanotron.yaml", """
parallelism:
  dp: 4
  pp: 2
  tp: 8
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
  expert_parallel_size: 1
model:
  dtype: bfloat16
  model_config:
    hidden_size: 4096
    num_hidden_layers: 32
    num_attention_heads: 32
    num_key_value_heads: 8
    intermediate_size: 14336
    vocab_size: 128256
    max_position_embeddings: 8192
    tie_word_embeddings: false
    hidden_act: silu
optimizer:
  zero_stage: 1
  accumulate_grad_in_fp32: true
tokens:
  sequence_length: 8192
  micro_batch_size: 1
  batch_accumulation_per_replica: 64
  train_steps: 100
""", tp=8, pp=2, dp=4, sp=True, zero=1, gpus=64, batch=256, seq=8192),
    sh("Hydra's overrides over a file that is not here", """
srun --nodes=8 --ntasks-per-node=8 python /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \\
  --config-path=conf --config-name=llama \\
  trainer.devices=8 trainer.num_nodes=8 ++model.tensor_model_parallel_size=4 +model.pipeline_model_parallel_size=4 \\
  model.virtual_pipeline_model_parallel_size=5 model.micro_batch_size=1 model.global_batch_size=512 \\
  'model.data.data_prefix=[0.5,/a,0.5,/b]' model.mcore_gpt=True model.encoder_seq_length=4096
""", refused="conf/llama.yaml"),
    sh("a loop of trials", f"""
for TP in 1 2 4; do
  {SMALL} --tensor-model-parallel-size $TP
done
""", refused="--pick"),
    sh("a function that says the degrees", f"""
build() {{
  local tp=$1 pp=${{2:-1}}
  echo "--tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp"
}}
PAR=$(build 2 4)
eval {SMALL} $PAR
""", tp=2, pp=4, gpus=16, dp=2),
    sh("flags that a program says", f"{SMALL} $(python degrees.py --gpus 16)\n", refused="may hold any"),
    sh("flags that a program says, in the old quotes", f"PAR=`python degrees.py`\n{SMALL} $PAR\n", refused="may hold any"),
    sh("a degree of another file", f"""
source ./conf.sh
{SMALL} --tensor-model-parallel-size $TP
""", refused="a variable of the script is not set"),
    sh("torch's FSDP under Megatron-LM", f"{SMALL} --use-torch-fsdp2 --no-gradient-accumulation-fusion\n", zero=3, dp=16),
    sh("Megatron-FSDP that shards gradients",
       f"{SMALL} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --use-distributed-optimizer\n",
       zero=2, dp=16),
    sh("fewer layers at both ends",
       f"{SMALL} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7\n",
       pp=4, layers=(7, 9, 9, 7)),
    sh("embedding and loss counted as layers",
       f"{SMALL} --num-layers 30 --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split\n",
       pp=4, layers=(7, 8, 8, 7)),
    sh("defaults of defaults", f"""
TP=${{TENSOR_PARALLEL:-${{TP_DEFAULT:-4}}}}
GBS=${{GBS:-$((2*64))}}
torchrun --nproc_per_node ${{NPROC:-8}} --nnodes ${{NNODES:-2}} pretrain_gpt.py {MODEL} --tensor-model-parallel-size ${{TP}} --global-batch-size ${{GBS}}
""", tp=4, dp=4, batch=128),
    sh("ends of lines inside quotes",
       "OPTS=\"--tensor-model-parallel-size 2 \\\n  --pipeline-model-parallel-size 2 \\\n  --sequence-parallel\"\n" + f"{SMALL} $OPTS\n",
       tp=2, pp=2, sp=True),
    sh("a shell on every node", f"""
i=0
for host in node1 node2 node3 node4; do
  ssh $host "cd /work && torchrun --nnodes 4 --nproc_per_node 8 --node_rank $i pretrain_gpt.py {MODEL} --tensor-model-parallel-size 8 --global-batch-size 64" &
  i=$((i+1))
done
wait
""", tp=8, dp=4, gpus=32),
    sh("ranks by mpirun",
       f"mpirun -np 64 -npernode 8 -x PATH python pretrain_gpt.py {MODEL} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --global-batch-size 64\n",
       tp=8, pp=2, dp=4, gpus=64),
    sh("all of Accelerate by flags", """
accelerate launch --num_machines 2 --num_processes 16 --mixed_precision bf16 --use_fsdp --fsdp_sharding_strategy FULL_SHARD \\
  --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing
""", zero=3, dp=16, mbs=4, batch=128, recompute="full"),
    sh("words of experts that decide speed", f"""
{SMALL} --num-experts 64 --moe-router-topk 6 --expert-model-parallel-size 8 --moe-token-dispatcher-type flex --moe-enable-deepep \\
  --moe-grouped-gemm --moe-permute-fusion --moe-shared-expert-intermediate-size 2816 --moe-ffn-hidden-size 1408 --cuda-graph-impl transformer_engine --delay-wgrad-compute
""", ep=8, experts=64, topk=6, dispatch="deepep"),
    sh("an assignment that a test hides", f"""
if [ "$(hostname)" = "cluster-a" ]; then TP=8; else TP=2; fi
{SMALL} --tensor-model-parallel-size $TP
""", refused="hostname"),
    sh("a here-document that another shell reads", f"""
cat <<'SCRIPT' > job.sh
#!/bin/bash
{SMALL} --tensor-model-parallel-size 8
SCRIPT
sbatch --nodes=2 --gpus-per-node=8 job.sh
""", tp=8, gpus=16),
]  # fmt: skip
