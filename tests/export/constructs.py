"""Constructs of launch scripts and configurations, one by one: what each sets, and what that means."""

from __future__ import annotations

from tests.export.corpus import Entry, conf, sh

LM, DS, PAI = "NVIDIA/Megatron-LM", "deepspeedai/Megatron-DeepSpeed", "alibaba/Pai-Megatron-Patch"
NEOX, FACTORY, NANO = "EleutherAI/gpt-neox", "hiyouga/LLaMA-Factory", "huggingface/nanotron"
GPT = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --micro-batch-size 4"
)
CONSTRUCTS: list[Entry] = [
    # Megatron-LM
    sh(f"{LM} examples/gpt3/train_gpt3_175b_distributed.sh", """
GPUS_PER_NODE=8
NUM_NODES=16
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
MODEL=(--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048)
TRAIN=(--micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 --fp16 --lr 6.0e-5)
PAR=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} ${PAR[@]}
""", tp=8, pp=16, dp=1, mbs=1, gpus=128, batch=1536, precision="fp16", zero=0),
    sh(f"{LM} examples/llama/train_llama3_8b_h100_fp8.sh", """
TP_SIZE=1; CP_SIZE=1; PP_SIZE=1; MICRO_BATCH_SIZE=1; GLOBAL_BATCH_SIZE=128; DTYPE="fp8"; SEQ_LENGTH=8192
D=(--nproc_per_node 8 --nnodes ${NNODES:-1} --node_rank 0)
P=(--tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE)
T=(--micro-batch-size $MICRO_BATCH_SIZE --global-batch-size $GLOBAL_BATCH_SIZE --bf16 --seq-length $SEQ_LENGTH)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
fi
O=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
torchrun ${D[@]} pretrain_gpt.py ${P[@]} ${T[@]} ${DTYPE_ARGS[@]} ${O[@]} --num-layers 32
""", tp=1, dp=8, batch=128, seq=8192, precision="fp8", zero=1, overlap=("grad", "param")),
    sh(f"{LM} examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh", """
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --global-batch-size 128 \\
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --fp8-format hybrid --bf16 \\
  --grad-reduce-in-bf16 --fp8-param-gather --init-model-with-meta-device
""", zero=3, dp=8, precision="fp8", params="fp8", grads="bf16"),
    sh(f"{LM} examples/mixtral/train_mixtral_8x7b_distributed.sh", """
MOE="--num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall"
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --seq-length 4096 $MOE --micro-batch-size 1 \\
  --global-batch-size 256 --bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \\
  --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel
""", pp=4, ep=8, dp=16, gpus=64, sp=False, dispatch="alltoall", zero=1),
    sh(f"{LM} examples/gptoss/02_train.sh", """
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp-size) TP="$2"; shift; shift;;
    *) echo "unknown"; exit 1;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --num-experts 32 --micro-batch-size 1 \\
  --tensor-model-parallel-size ${TP:-2} --expert-model-parallel-size ${EP:-4} --expert-tensor-parallel-size 1 \\
  --sequence-parallel
""", tp=2, ep=4, etp=1, sp=True),
    sh(f"{LM} examples/bert/train_bert_340m_distributed.sh", """
torchrun --nproc_per_node 8 --nnodes 16 pretrain_bert.py --num-layers 24 --micro-batch-size 4 --global-batch-size 32 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --fp16 --vocab-size 30522 --hidden-size 1024 \\
  --num-attention-heads 16
""", tp=8, pp=16, dp=1, precision="fp16", model=None),
    sh(f"{LM} examples/t5/train_t5_220m_distributed.sh", """
torchrun --nproc_per_node 8 pretrain_t5.py --encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 \\
  --micro-batch-size 64 --global-batch-size 512 --bf16 --tensor-model-parallel-size 1
""", dp=8, mbs=64, batch=512, model=None),
    sh(f"{LM} examples/mamba/train.sh", """
case "${MODEL_SCALE}" in
    "800M") L=48;;
    "8B") L=56;;
esac
torchrun --nproc_per_node 8 pretrain_mamba.py --num-layers $L --micro-batch-size 4 --global-batch-size 32
""", refused="MODEL_SCALE"),
    sh(f"{LM} examples/mamba/run_text_gen_server_8b.sh",
       "torchrun --nproc_per_node 1 tools/run_mamba_text_generation_server.py --num-layers 56 --micro-batch-size 1",
       refused="does not train"),
    sh(f"{LM} examples/academic_paper_scripts/detxoify_lm/finetune_gpt_distributed-1.3b.sh", """
python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 finetune_gpt.py --num-layers 24 --micro-batch-size 4 \\
  --global-batch-size 512 --fp16 --DDP-impl local --finetune --checkpoint-activations
""", gpus=16, dp=16, recompute="full", flash=False, framework="megatron-apex"),
    sh(f"{LM} examples/academic_paper_scripts/sc21/run_figure_11.sh", """
PP=8
if [ ${PP} == 8 ]; then NLS=8; MBS=1; fi
export TP=8 MBS=${MBS} NLS
. `pwd`/CONFIG.sh
""", refused="CONFIG.sh"),
    sh(f"{LM} docs: gpt 345m on one GPU", f"CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node=1 {GPT} --fp16",
       gpus=1, mbs=4, seq=1024, precision="fp16"),
    sh(f"{LM} docs: llama-70b with virtual stages", """
torchrun --nnodes=8 --nproc-per-node=8 pretrain_gpt.py --num-layers 80 --micro-batch-size 1 --global-batch-size 1024 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 \\
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap
""", tp=8, pp=4, vp=4, dp=2, sp=True, overlap=("grad", "param", "tp", "p2p")),
    sh(f"{LM} docs: deepseek-v3 layout", """
torchrun --nnodes=128 --nproc-per-node=8 pretrain_gpt.py --num-layers 61 --num-experts 256 --micro-batch-size 1 \\
  --global-batch-size 8192 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 8 \\
  --pipeline-model-parallel-layout "Et*3|(tt|)*29m|L" --mtp-num-layers 1 --expert-model-parallel-size 64 \\
  --expert-tensor-parallel-size 1 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep \\
  --recompute-granularity selective --recompute-modules mla_up_proj mlp --fp8-format e4m3 --fp8-recipe blockwise \\
  --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --use-distributed-optimizer
""", tp=2, pp=8, vp=4, ep=64, etp=1, dp=64, dispatch="deepep", modules=("mlp", "mla_up_proj"), moments="bf16", mtp=1),
    sh(f"{LM} docs: activation offload", f"torchrun --nproc-per-node 8 {GPT} --cpu-offloading-num-layers 4",
       offload_layers=4),
    sh(f"{LM} docs: optimizer offload", f"""torchrun --nproc-per-node 8 {GPT} --use-distributed-optimizer \\
  --optimizer-cpu-offload --use-precision-aware-optimizer""", offload="optimizer", zero=1),
    sh(f"{LM} docs: CUDA graphs", f"""torchrun --nproc-per-node 8 {GPT} --cuda-graph-impl transformer_engine \\
  --cuda-graph-modules attn mlp --te-rng-tracker""", graphs="partial"),
    sh(f"{LM} docs: hierarchical optimizer", f"""torchrun --nproc-per-node 8 --nnodes 2 {GPT} \\
  --use-distributed-optimizer --num-distributed-optimizer-instances 2""", shard=8, zero=1),
    sh(f"{LM} docs: yaml arguments", "torchrun --nproc-per-node 8 p.py --yaml-cfg c.yaml --micro-batch-size 1",
       refused="--yaml-cfg"),
    # Megatron-DeepSpeed
    sh(f"{DS} examples_deepspeed/azure/run-175b.sh", """
TP=1; ZERO_STAGE=3; MBSIZE=4; GB=32
cat <<EOT > ds.json
{ "zero_optimization": { "stage": $ZERO_STAGE } }
EOT
deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size $MBSIZE \\
  --global-batch-size $GB --num-layers 96 --seq-length 1024 --fp16 --deepspeed --deepspeed_config ds.json \\
  --zero-stage $ZERO_STAGE --checkpoint-activations --deepspeed-activation-checkpointing
""", gpus=64, zero=3, recompute="full", framework="deepspeed", precision="fp16"),
    sh(f"{DS} examples_deepspeed/azure/run-1t.sh", """
deepspeed pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 --global-batch-size 8 --num-layers 128 \\
  --fp16 --cpu-optimizer --deepspeed --zero-stage 3 --deepspeed_config ds.json --checkpoint-activations
""", 64, zero=3, offload="optimizer"),
    sh(f"{DS} examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh", """
EP_SIZE=128
NUM_GPUS=64
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then EP_PARALLEL_SIZE=$NUM_GPUS; else EP_PARALLEL_SIZE=$EP_SIZE; fi
ARGS="--num-experts ${EP_SIZE} --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-layers 24 --micro-batch-size 8 \\
  --global-batch-size 512 --tensor-model-parallel-size 1 --no-pipeline-parallel --fp16"
DSARGS="--deepspeed --zero-stage 0 --pipeline-model-parallel-size 1"
run_cmd="deepspeed ${DIR}/pretrain_gpt.py ${ARGS} ${DSARGS} &> log.txt"
eval ${run_cmd}
""", 64, ep=64, etp=1, zero=0, batch=512),
    sh(f"{DS} examples_deepspeed/pretrain_llama2_distributed.sh", """
TP=2
PP=2
ZERO_STAGE=0
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \\
  --num-layers 24 --micro-batch-size 4 --global-batch-size 32 --bf16 --use-flash-attn-v2 --deepspeed \\
  --zero-stage=$ZERO_STAGE --deepspeed-activation-checkpointing
""", tp=2, pp=2, dp=2, recompute="full", flash=True, framework="deepspeed"),
    sh(f"{DS} examples_deepspeed/sequence_parallel/ds_pretrain_gpt_1.3B_seq_parallel_32k.sh", """
deepspeed pretrain_gpt.py --num-layers 24 --micro-batch-size 1 --tensor-model-parallel-size 1 --seq-length 32768 \\
  --ds-sequence-parallel-size 4 --deepspeed --zero-stage 1 --bf16
""", 16, refused="--ds-sequence-parallel-size"),
    sh(f"{DS} examples/pretrain_gpt_distributed_with_mp.sh", """
python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 \\
  --pipeline-model-parallel-size 2 --sequence-parallel --num-layers 24 --micro-batch-size 4 --fp16
""", tp=2, pp=2, dp=2, sp=True),
    sh(f"{DS} examples_deepspeed with the stage in the JSON only",
       "deepspeed pretrain_gpt.py --num-layers 24 --micro-batch-size 1 --deepspeed --deepspeed_config ds.json", 8,
       refused="--zero-stage"),
    sh(f"{DS} examples/evaluate_zeroshot_gpt.sh",
       "torchrun --nproc_per_node 8 ./tasks/main.py --task LAMBADA --num-layers 24 --micro-batch-size 8",
       refused="does not train"),
    sh("bigscience-workshop/bigscience train/tr11-176B-ml", """
#SBATCH --nodes=48
#SBATCH --gres=gpu:8
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
PP_SIZE=12
TP_SIZE=4
ZERO_STAGE=0
GPT_ARGS=" --num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --micro-batch-size 2 \\
    --global-batch-size 2048 --bf16 --checkpoint-activations "
export CMD=" pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE $GPT_ARGS \\
    --deepspeed --zero-stage ${ZERO_STAGE} --deepspeed-activation-checkpointing"
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD"
""", tp=4, pp=12, dp=8, gpus=384, recompute="full", zero=0, batch=2048),
    # Pai-Megatron-Patch: everything by position
    sh(f"{PAI} examples/llama3_1/run_mcore_llama3_1.sh", """
ENV=$1
MODEL_SIZE=$2
BATCH_SIZE=$3
TP=$4
AC=$5
if [ $ENV = dsw ]; then NNODES=1; GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then NNODES=${WORLD_SIZE}; GPUS_PER_NODE=8; fi
if [ $MODEL_SIZE = 8B ]; then L=32; elif [ $MODEL_SIZE = 70B ]; then L=80; fi
if [ $AC = full ]; then
  A="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
  A="--recompute-activations"
else
  A=""
fi
cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_llama.py --num-layers $L \\
  --micro-batch-size $BATCH_SIZE --tensor-model-parallel-size $TP $A"
eval $cmd
""", None, "dsw", "8B", "2", "4", "sel", tp=4, dp=2, mbs=2, recompute="selective", gpus=8),
    sh(f"{PAI} the same without its parameters", """
TP=$4
torchrun --nproc_per_node 8 pretrain_llama.py --num-layers 32 --micro-batch-size 1 --tensor-model-parallel-size $TP
""", refused="a whole number"),
    sh(f"{PAI} examples/qwen2_5: offload by a word", """
DO=$1
if [ $DO = true ]; then D="--use-distributed-optimizer"; elif [ $DO = false ]; then D=""; fi
torchrun --nproc_per_node 8 pretrain_qwen.py --num-layers 28 --micro-batch-size 1 $D
""", None, "true", zero=1),
    sh(f"{PAI} undecided and it matters", """
if [ "$USE_FSDP" = yes ]; then
  D="--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
else D="--use-distributed-optimizer"; fi
torchrun --nproc_per_node 8 pretrain_qwen.py --num-layers 28 --micro-batch-size 1 $D
""", refused="USE_FSDP"),
    sh(f"{PAI} undecided and it does not matter", """
if [ -d "$CHECKPOINT" ]; then LOAD="--load $CHECKPOINT"; else LOAD=""; fi
torchrun --nproc_per_node 8 pretrain_qwen.py --num-layers 28 --micro-batch-size 1 $LOAD
""", dp=8, zero=0),
    # gpt-neox
    conf(f"{NEOX} configs/20B.yml", "20B.yml", """{
  "pipe-parallel-size": 4, "model-parallel-size": 2, "num-layers": 44, "hidden-size": 6144, "seq-length": 2048,
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 1260000000}, "checkpoint-activations": true,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32, "fp16": {"fp16": true, "enabled": true}
}""", 96, tp=2, pp=4, dp=12, mbs=4, batch=1536, zero=1, recompute="full", precision="fp16"),
    conf(f"{NEOX} configs/6-7B.yml", "6-7B.yml", """{
  "pipe_parallel_size": 1, "model_parallel_size": 1, "num_layers": 32, "seq_length": 2048,
  "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, "checkpoint_activations": true,
  "fp16": {"enabled": true}
}""", 64, tp=1, dp=64, batch=256, zero=1),
    conf(f"{NEOX} configs/llama2/70B.yml", "70B.yml", """{
  "pipe_parallel_size": 0, "model_parallel_size": 8, "num_layers": 80, "hidden_size": 8192, "num_kv_heads": 8
}""", 64, refused="train_micro_batch_size_per_gpu"),
    conf(f"{NEOX} configs/llemma/34B.yml", "34B.yml", """{
  "pipe_parallel_size": 0, "model_parallel_size": 8, "num_layers": 48, "seq_length": 4096,
  "attention_config": [[["flash"], 48]], "zero_optimization": {"stage": 1}, "precision": "bfloat16",
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16, "checkpoint_activations": true
}""", 256, tp=8, pp=1, dp=32, batch=1024, flash=True, precision="bf16"),
    conf(f"{NEOX} configs/local_setup.yml", "local_setup.yml", '{"data_path": "enwik8", "hostfile": "/job/hosts"}', 8,
         refused="None of their keys"),
    # Hugging Face
    conf(f"{FACTORY} examples/train_full/qwen3_full_sft.yaml", "sft.yaml", """
model_name_or_path: Qwen/Qwen3-4B
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
""", 8, zero=3, dp=8, mbs=1, batch=16, seq=2048, task="finetune", recompute="full"),
    conf(f"{FACTORY} examples/train_lora/qwen3_lora_sft.yaml", "lora.yaml", """
model_name_or_path: Qwen/Qwen3-4B
stage: sft
finetuning_type: lora
lora_rank: 8
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
""", 4, zero=0, dp=4, batch=32, task="lora", lora_rank=8),
    conf(f"{FACTORY} examples/train_lora/qwen3_lora_dpo.yaml", "dpo.yaml", """
model_name_or_path: Qwen/Qwen3-4B
stage: dpo
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 1
""", 4, task="lora", told="stage dpo, taken as fine-tuning"),
    conf(f"{FACTORY} examples/train_qlora/llama3_lora_sft_bnb.yaml", "qlora.yaml", """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
stage: sft
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 1
""", 1, task="lora", told="weights quantised beside adapters (QLoRA)"),
    conf(f"{FACTORY} a DeepSpeed file of one's own", "own.yaml",
         "model_name_or_path: m\ndeepspeed: config/mine.json\ncutoff_len: 2048\nper_device_train_batch_size: 1\n", 8,
         refused="a stage in the name"),
    conf("axolotl-ai-cloud/axolotl examples/llama-3/fft-8b.yaml", "fft.yaml", """
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 8192
sample_packing: true
gradient_accumulation_steps: 8
micro_batch_size: 1
gradient_checkpointing: true
flash_attention: true
""", 8, zero=0, recompute="full", batch=64, seq=8192, task="finetune"),
    conf("axolotl-ai-cloud/axolotl examples/llama-3/qlora-fsdp-70b.yaml", "qlora.yaml", """
base_model: casperhansen/llama-3-70b-fp16
adapter: qlora
lora_r: 8
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 4
gradient_checkpointing: true
fsdp:
  - full_shard
  - auto_wrap
""", 2, zero=3, task="lora", lora_rank=8, framework="fsdp-eager"),
    conf("huggingface/trl examples/accelerate_configs/deepspeed_zero3.yaml", "zero3.yaml", """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
""", zero=3, dp=8, framework="deepspeed"),
    conf("huggingface/trl examples/accelerate_configs/fsdp2.yaml", "fsdp2.yaml", """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
""", zero=3, dp=8, reshard="always", recompute="none"),
    conf("huggingface/trl examples/accelerate_configs/multi_gpu.yaml", "multi.yaml",
         "distributed_type: MULTI_GPU\nmixed_precision: 'bf16'\nnum_processes: 8\n", zero=0, dp=8),
    conf("huggingface/accelerate with a file of DeepSpeed", "ds.yaml",
         "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: zero2.json}\nnum_processes: 8\n",
         refused="deepspeed_config_file"),
    # nanotron
    conf(f"{NANO} examples/config_tiny_llama.yaml", "tiny.yaml", """
parallelism:
  dp: 2
  pp: 2
  pp_engine: 1f1b
  tp: 2
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
optimizer: {zero_stage: 0}
tokens: {batch_accumulation_per_replica: 1, micro_batch_size: 2, sequence_length: 256}
""", tp=2, pp=2, dp=2, sp=True, batch=4, seq=256, gpus=8),
    conf(f"{NANO} the ultra-scale playbook's 80B", "80b.yaml", """
parallelism: {dp: 8, pp: 8, tp: 8, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}
optimizer: {zero_stage: 1}
tokens: {batch_accumulation_per_replica: 32, micro_batch_size: 1, sequence_length: 4096}
""", tp=8, pp=8, dp=8, zero=1, batch=256, gpus=512),
    # torchtitan
    conf("pytorch/torchtitan llama3_8b.toml (0.2)", "8b.toml", """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
""", 8, dp=8, zero=3, recompute="selective", seq=8192, reshard="always"),
    conf("pytorch/torchtitan llama3_70b.toml (0.2)", "70b.toml", """
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
""", 64, tp=8, dp=8, sp=True, recompute="full"),
    conf("pytorch/torchtitan llama3_405b.toml (0.2)", "405b.toml", """
[model]
converters = ["float8"]
[training]
local_batch_size = 2
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
""", 128, tp=8, precision="fp8", told="enable_async_tensor_parallel"),
    conf("pytorch/torchtitan HSDP", "hsdp.toml",
         "[training]\nlocal_batch_size = 1\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
         "data_parallel_shard_degree = 8\n", dp=16, shard=8, zero=3),
    # DeepSpeed
    conf("deepspeedai/DeepSpeedExamples zero2", "zero2.json",
         '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}',
         8, zero=2, dp=8, mbs=4, batch=64),
    conf("huggingface/transformers ds_config_zero3.json", "ds3.json",
         '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": true},'
         ' "gradient_accumulation_steps": "auto", "train_batch_size": "auto",'
         ' "train_micro_batch_size_per_gpu": "auto"}', 8, zero=3, offload="optimizer", dp=8),
    conf("deepspeedai/DeepSpeed infinity", "inf.json",
         '{"train_micro_batch_size_per_gpu": 1,'
         ' "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}',
         8, zero=3, told="zero_optimization.offload_param"),
    # Others
    sh("a loop over sizes", """
for TP in 1 2 4 8; do
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --tensor-model-parallel-size $TP
done
""", refused="several"),
    sh("a function with parameters", """
train() {
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $1 --micro-batch-size 1 --tensor-model-parallel-size $2
}
train 32 4
""", tp=4, dp=2),
    sh("a server's sizes from the scheduler", """#!/bin/bash
#SBATCH -N 4
#SBATCH --gpus-per-node=8
srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1
""", gpus=32, dp=32),
    sh("GPUs nobody says", f"torchrun --nnodes $NNODES --nproc-per-node 8 {GPT}",
       refused="number of GPUs"),
    sh("a flag without its value", "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 3 --micro-batch-size $MBS",
       refused="a whole number"),
]  # fmt: skip
