# ruff: noqa: E501 - lines as scripts have them
"""The scripts of the corpus."""

from __future__ import annotations

from typing import Final

from tests.export.corpus import Entry, sh

LM, DS = "NVIDIA/Megatron-LM examples", "deepspeedai/Megatron-DeepSpeed"
PAI, BIG, BRIDGE = (
    "alibaba/Pai-Megatron-Patch examples",
    "bigscience-workshop/bigscience train",
    "NVIDIA-NeMo/Megatron-Bridge",
)
CODE, CHAT = (
    "bigcode-project/Megatron-LM examples",
    "deepspeedai/DeepSpeedExamples applications/DeepSpeed-Chat/training",
)
# One launcher script of BigScience: sizes from the batch system, a DeepSpeed file, a shell inside srun.
BLOOM: Final = """#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --gres=gpu:{each}                 # number of gpus
GPUS_PER_NODE={each}
NNODES=$SLURM_NNODES
PP_SIZE={pp}
TP_SIZE={tp}
MICRO_BATCH_SIZE={mbs}  # was MBS=1 till GBS=784
GLOBAL_BATCH_SIZE={batch}
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
GPT_ARGS=" \\
    --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --seq-length 2048 \\
    --micro-batch-size $MICRO_BATCH_SIZE --rampup-batch-size 16 16 9_765_625 --global-batch-size $GLOBAL_BATCH_SIZE \\
    --{width} --checkpoint-activations {more} \\
    "
ZERO_STAGE={zero} # important
config_json="./ds_config.$SLURM_JOBID.json"
cat <<EOT > $config_json
{{ "zero_optimization": {{ "stage": $ZERO_STAGE }} }}
EOT
DEEPSPEED_ARGS=" --deepspeed --deepspeed_config ${{config_json}} --zero-stage ${{ZERO_STAGE}} \\
    --deepspeed-activation-checkpointing "
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES \\
    --master_addr $MASTER_ADDR "
export CMD=" `pwd`/pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE \\
    $GPT_ARGS $DEEPSPEED_ARGS "
echo $CMD
clear; srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a main_log.txt
"""
# Pai: everything by position, every choice a word.
BY_POSITION: Final = """
ENV=$1
if [ -z ${MP_VP} ]; then VP=""; else VP="--num-layers-per-virtual-pipeline-stage ${MP_VP}"; fi
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$5
PR=$6
TP=$7
PP=$8
SP=${9}
DO=${10}
AC=${11}
if [ $MODEL_SIZE = 8B ]; then
NUM_LAYERS=32
HIDDEN_SIZE=4096
gqa_options=" --group-query-attention --num-query-groups 8"
elif [ $MODEL_SIZE = 0.5B ]; then
NUM_LAYERS=24
HIDDEN_SIZE=896
gqa_options=" --group-query-attention --num-query-groups 2"
fi
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
comm="--overlap-grad-reduce --overlap-param-gather"
if [ $TP_COMM_OVERLAP -eq 1 ]; then comm="--tp-comm-overlap --overlap-grad-reduce --overlap-param-gather"; fi
if [ $AC = full ]; then
    ac="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    ac="--recompute-activations"
elif [ $AC = none ]; then
    ac=""
fi
if [ $PR = fp16 ]; then pr="--fp16"; elif [ $PR = bf16 ]; then pr="--bf16"
elif [ $PR = fp8 ]; then pr="--bf16 --fp8-format hybrid"; fi
if [ $DO = true ]; then do="--use-distributed-optimizer"; elif [ $DO = false ]; then do=""; fi
if [ $SP = true ] && [ $TP -gt 1 ]; then sp="--sequence-parallel"; elif [ $SP = false ]; then sp=""; fi
options=" --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} --num-layers ${NUM_LAYERS} \\
  --hidden-size ${HIDDEN_SIZE} --num-attention-heads 32 --seq-length ${SEQ_LEN} \\
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --extra-vocab-size 256 --swiglu"
run_cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain.py ${options} ${pr} ${ac} ${do} ${sp} \\
  ${gqa_options} ${comm} ${VP}"
echo ${run_cmd}
eval ${run_cmd}
"""
SCRIPTS: list[Entry] = [
    sh(f"{LM}/gpt3/train_gpt3_175b_distributed.sh", """
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
D=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
M=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
T=(--micro-batch-size 1 --step-batch-size-schedule "0:16 2.4B:320 4.8B:624" --global-batch-size 1536 --fp16)
P=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
torchrun ${D[@]} pretrain_gpt.py ${M[@]} ${T[@]} ${P[@]}
""", refused="tp*pp*cp = 128"),
    sh(f"{LM}/gpt3/train_gpt3_175b_distributed.sh # on the nodes it needs", """
T=(--micro-batch-size 1 --global-batch-size 1536 --fp16 --num-layers 96 --hidden-size 12288 --num-attention-heads 96)
P=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${T[@]} ${P[@]} --seq-length 2048
""", 128, tp=8, pp=16, dp=1, batch=1536, precision="fp16", zero=0, depth=96, ffn=49152, vocab=51200),
    sh(f"{LM}/llama/train_llama3_8b_h100_fp8.sh", """
TP_SIZE=1
CP_SIZE=1
DTYPE="fp8"
P=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE # Not explicitly set
    --sequence-parallel  # Always enable sequence parallelism with TP_SIZE=2
)
T=(--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16 --seq-length 8192)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi
DATA=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA+=("--mock-data" "--vocab-size 128256")
else
    DATA+=("--data-path $DATA_ARG" "--vocab-size 128256")
fi
O=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
M=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \\
   --num-query-groups 8 --swiglu)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${P[@]} ${T[@]} ${DTYPE_ARGS[@]} ${DATA[@]} ${O[@]} ${M[@]}
""", tp=1, dp=8, sp=False, batch=128, seq=8192, precision="fp8", params="fp8", grads="bf16", zero=1,
       overlap=("grad", "param"), kv_heads=8, ffn=14336, vocab_read=128256),
    sh(f"{LM}/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh", """
F=(--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor
   --fsdp-double-buffer --use-nccl-ub --no-gradient-accumulation-fusion)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --global-batch-size 128 ${F[@]} \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --fp8-format hybrid --bf16 \\
  --fp8-param-gather --init-model-with-meta-device
""", zero=3, dp=8, precision="fp8", params="fp8", grads="fp32", told="--fsdp-double-buffer"),
    sh(f"{LM}/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh", """
TP=${TP:-1}
EP=${EP:-8}
MBS=${MBS:-4}
GBS=${GBS:-2048}
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-1}
SHARDING_STRATEGY=${SHARDING_STRATEGY:-"optim_grads_params"}
MEGATRON_PATH=${MEGATRON_PATH:-"your_own_megatron_path"}
ARGS=(--tensor-model-parallel-size ${TP} --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1
  --micro-batch-size ${MBS} --global-batch-size ${GBS} --recompute-granularity selective
  --recompute-modules mlp moe mla_up_proj layernorm --num-layers 61 --num-experts 256 --moe-router-topk 8
  --moe-layer-freq [0]*3+[1]*58 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep
  --mtp-num-layers 1 --bf16 --use-distributed-optimizer)
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
  ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy ${SHARDING_STRATEGY})
fi
TRAINING_CMD="
cd ${MEGATRON_PATH};
export PYTHONPATH=${MEGATRON_PATH}:${PYTHONPATH};
${PROFILE_CMD} python ${MEGATRON_PATH}/pretrain_gpt.py ${ARGS[@]}"
mkdir -p logs || {
    echo "Error"
    exit 1
}
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=your_own_num_nodes
srun --mpi=pmix -l --container-workdir=${MEGATRON_PATH} bash -x -c "${TRAINING_CMD}" 2>&1 | tee \\${SLURM_JOB_ID}.log
EOF
""", 256, tp=1, ep=8, etp=1, dp=256, mbs=4, batch=2048, zero=3, dispatch="hybridep", recompute="selective", mtp=1),
    sh(f"{LM}/mixtral/train_mixtral_8x7b_distributed.sh", """
NUM_NODES=${SLURM_NNODES:-"1"}
D=(--nproc_per_node 8 --nnodes $NUM_NODES)
MOE=(--num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --moe-grouped-gemm)
M=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
   --num-query-groups 8 --swiglu --no-position-embedding --position-embedding-type rope --seq-length 4096)
P=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8
   --use-distributed-optimizer --sequence-parallel)
if [ -n "${WANDB_API_KEY}" ]; then L=(--wandb-project Mixtral); fi
torchrun ${D[@]} pretrain_gpt.py ${MOE[@]} ${M[@]} ${P[@]} ${L[@]} --micro-batch-size 1 --global-batch-size 256 --bf16
""", pp=4, ep=8, dp=2, gpus=8, sp=False, dispatch="alltoall", zero=1, experts=8, topk=2, kv_heads=8, vocab=32000),
    sh(f"{LM}/gptoss/02_train.sh", """
while [[ $# -gt 0 ]]; do
    case $1 in
        --checkpoint-path) CHECKPOINT_PATH="$2"; shift 2 ;;
        --distributed-config-file) CONFIG="$2"; shift 2 ;;
        *) shift ;;
    esac
done
GPUS_PER_NODE=8
NUM_NODES=1
if [ -n "$CONFIG" ]; then source "$CONFIG"; fi
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP_SIZE=1
EP_SIZE=1
PP_SIZE=${WORLD_SIZE}
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py --num-layers 12 --hidden-size 512 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --ffn-hidden-size 2048 --num-experts 4 \\
  --moe-ffn-hidden-size 2048 --window-size 127,0 --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 \\
  --global-batch-size 128 --bf16 --recompute-activations --tensor-model-parallel-size ${TP_SIZE} \\
  --pipeline-model-parallel-size ${PP_SIZE} --expert-model-parallel-size ${EP_SIZE} --use-distributed-optimizer
""", None, "--checkpoint-path", "out", tp=1, pp=8, dp=1, ep=1, recompute="selective", experts=4, batch=128),
    sh(f"{LM}/bert/train_bert_340m_distributed.sh", """
torchrun --nproc_per_node 8 --nnodes 1 pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
  --seq-length 512 --micro-batch-size 4 --global-batch-size 32 --tensor-model-parallel-size 8 \\
  --pipeline-model-parallel-size 16 --fp16 --vocab-size 30522
""", 128, tp=8, pp=16, dp=1, precision="fp16", model=None),
    sh(f"{LM}/t5/train_t5_220m_distributed.sh", """
torchrun --nproc_per_node 8 pretrain_t5.py --encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 \\
  --encoder-seq-length 512 --decoder-seq-length 128 --micro-batch-size 64 --global-batch-size 512 --bf16 \\
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
""", dp=8, mbs=64, batch=512, seq=None, model=None),
    sh(f"{LM}/mamba/train.sh", """
MODEL_SCALE="800M" # or "8B"
case "${MODEL_SCALE}" in
    "800M") TP=1; PATTERN="M-M*"; HIDDEN=1024; BATCH=32 ;;
    "8B") TP=4; PATTERN="M-M-M*"; HIDDEN=4096; BATCH=8 ;;
    *) echo "Invalid version specified"; exit 1 ;;
esac
options=" --tensor-model-parallel-size ${TP} --sequence-parallel --use-distributed-optimizer \\
       --overlap-param-gather --overlap-grad-reduce --hidden-size ${HIDDEN} --num-attention-heads 16 \\
       --hybrid-layer-pattern ${PATTERN} --seq-length 4096 --micro-batch-size 4 --global-batch-size ${BATCH} --bf16"
torchrun --nproc_per_node 8 ../../pretrain_hybrid.py ${options}
""", tp=1, dp=8, mbs=4, batch=32, sp=False, overlap=("grad", "param"), model=None),
    sh(f"{LM}/multimodal/sft_mistral_clip.sh", """
if [[ -z $WORKSPACE ]]; then
    echo "Please set WORKSPACE for storing your model checkpoints."
    exit 1
fi
DEBUG=0
if [[ $DEBUG -eq 1 ]]; then BZ=1; else BZ=128; fi
OPTIONS=" --tensor-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 576 \\
  --decoder-seq-length 2048 --micro-batch-size 1 --global-batch-size ${BZ} --bf16 --use-distributed-optimizer"
torchrun --nproc_per_node 8 examples/multimodal/train.py ${OPTIONS}
""", tp=4, dp=2, batch=128, zero=1, seq=None, model=None),
    sh(f"{LM}/mimo/scripts/run_hetero_nemotron_20l_mock_train.sh", """
torchrun --nproc-per-node 8 examples/mimo/train_hetero.py --num-layers 20 --micro-batch-size 1 --llm-tp 2 --llm-dp 1 \\
  --encoder-tp 2 --global-batch-size 8
""", refused="a way of splitting"),
    sh(f"{LM}/inference/run_inference_server.sh", """
NPROC=8
torchrun --nproc-per-node $NPROC -m megatron.inference.launch_inference_server --tensor-model-parallel-size 2 \\
  --expert-model-parallel-size 8 --micro-batch-size 1 --bf16
""", refused="does not train"),
    sh(f"{LM}/mamba/run_text_gen_server_8b.sh", """
torchrun --nproc_per_node 1 ../../tools/run_mamba_text_generation_server.py --num-layers 56 --hidden-size 4096 \\
  --micro-batch-size 1
""", refused="does not train"),
    sh(f"{LM}/post_training/modelopt/train.sh", """
SCRIPT_DIR="$(dirname "$(readlink -f "$0")")"
MLM_MODEL_CFG=$1
source "${SCRIPT_DIR}/conf/arguments.sh"
${LAUNCH_SCRIPT} ${SCRIPT_DIR}/../../../pretrain_gpt.py ${MODEL_ARGS} --tensor-model-parallel-size ${TP} \\
  --micro-batch-size 1
""", None, "meta-llama/Llama-3.2-1B-Instruct", refused="a whole number"),
    sh(f"{LM}/academic_paper_scripts/sc21/run_figure_11.sh", """
PIPELINE_PARALLEL=1
if [ ${PIPELINE_PARALLEL} == 8 ]; then NLS=24; elif [ ${PIPELINE_PARALLEL} == 1 ]; then NLS=3; fi
export MBS=1 GBS=8
. `pwd`/CONFIG.sh
. `pwd`/SBATCH.sh
exit 0
""", refused="SBATCH.sh"),
    sh(f"{LM}/academic_paper_scripts/detxoify_lm/finetune_gpt_distributed-1.3b.sh", """
DATA_PATH=$1
lr=$3
bs=$4
GPUS_PER_NODE=16
python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE finetune_gpt.py --num-layers 24 \\
  --hidden-size 2048 --num-attention-heads 32 --micro-batch-size 4 --global-batch-size $bs --seq-length 2048 --fp16 --DDP-impl local \\
  --finetune --checkpoint-activations
""", None, "data", "out", "1e-5", "512", gpus=16, dp=16, mbs=4, batch=512, recompute="full", flash=False, framework="megatron-apex"),
    # Megatron-DeepSpeed
    sh(f"{DS} examples_deepspeed/azure/run-175b.sh", """
TP=1
NLAYERS=96
HIDDEN=12288
ZERO_STAGE=3
BS=4
GB=32
cat <<EOT > $DS_CONFIG
{ "train_batch_size" : $GB, "zero_optimization": { "stage": $ZERO_STAGE } }
EOT
deepspeed --force_multi --num_nodes=$DLTS_NUM_WORKER --hostfile $DLTS_HOSTFILE pretrain_gpt.py \\
  --tensor-model-parallel-size $TP --num-layers $NLAYERS --hidden-size $HIDDEN --num-attention-heads 96 \\
  --seq-length 1024 --micro-batch-size $BS --global-batch-size $GB --fp16 --deepspeed --deepspeed_config $DS_CONFIG \\
  --zero-stage $ZERO_STAGE --checkpoint-activations --deepspeed-activation-checkpointing
""", 64, gpus=64, dp=64, zero=3, mbs=4, recompute="full", framework="deepspeed", precision="fp16"),
    sh(f"{DS} examples_deepspeed/azure/run-1t.sh", """
deepspeed pretrain_gpt.py --tensor-model-parallel-size 1 --num-layers 128 --hidden-size 25600 \\
  --num-attention-heads 160 --seq-length 1024 --micro-batch-size 1 --global-batch-size 8 --fp16 --cpu-optimizer \\
  --deepspeed --zero-stage 3 --deepspeed_config ds.json --checkpoint-activations
""", 64, zero=3, offload="optimizer", depth=128, hidden=25600, vocab=51200),
    sh(f"{DS} examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh", """
EP_SIZE=128
NUM_GPUS=128
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then EP_PARALLEL_SIZE=$NUM_GPUS; else EP_PARALLEL_SIZE=$EP_SIZE; fi
sed "s/CONFIG_MBSIZE/8/" ds_config_gpt_TEMPLATE.json | sed "s/ZERO_STAGE/0/" > ds_config.json
options=" --tensor-model-parallel-size 1 --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-experts ${EP_SIZE} \\
  --num-layers 24 --micro-batch-size 8 --global-batch-size 512 --fp16 --deepspeed --deepspeed_config ds_config.json"
run_cmd="deepspeed ${DIR}/../../pretrain_gpt.py ${options} &> log.txt"
eval ${run_cmd}
""", 128, refused="--zero-stage"),
    sh(f"{DS} examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh # with its stage", """
EP_SIZE=128
NUM_GPUS=64
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then EP_PARALLEL_SIZE=$NUM_GPUS; else EP_PARALLEL_SIZE=$EP_SIZE; fi
options=" --tensor-model-parallel-size 1 --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-experts ${EP_SIZE} \\
  --num-layers 24 --micro-batch-size 8 --global-batch-size 512 --no-pipeline-parallel --fp16 --deepspeed \\
  --zero-stage 0 --pipeline-model-parallel-size 1"
eval deepspeed pretrain_gpt.py ${options} "&>" log.txt
""", 64, ep=64, etp=1, dp=64, zero=0, batch=512),
    sh(f"{DS} examples_deepspeed/MoE/ds_pretrain_gpt_6.7B_dense.sh # with its stage", """
EP_SIZE=1 ## EP_SIZE 1 means dense model without MoE
MP_SIZE=8
options=" --tensor-model-parallel-size ${MP_SIZE} --moe-expert-parallel-size ${EP_SIZE} --num-experts ${EP_SIZE} \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 4 \\
  --global-batch-size 1024 --fp16 --deepspeed --zero-stage 0"
deepspeed pretrain_gpt.py ${options}
""", 64, tp=8, ep=1, dp=8, batch=1024, zero=0, experts=None, vocab=51200),
    sh(f"{DS} examples_deepspeed/pretrain_llama2_distributed.sh", """
TP=2
PP=2
ZERO_STAGE=0
cat <<EOT > $DS_CONFIG
{ "zero_optimization": { "stage": $ZERO_STAGE }, "bf16": { "enabled": true } }
EOT
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 1 --node_rank 0"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \\
  --num-layers 24 --hidden-size 2048 --ffn-hidden-size 5504 --num-attention-heads 16 --num-key-value-heads 4 \\
  --seq-length 2048 --micro-batch-size 4 --global-batch-size 32 --bf16 --swiglu --no-query-key-layer-scaling \\
  --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear $ds_args
""", tp=2, pp=2, dp=2, zero=0, framework="deepspeed", batch=32, kv_heads=4, ffn=5504, vocab=32000, learned_positions=0),
    sh(f"{DS} examples_deepspeed/sequence_parallel/ds_pretrain_gpt_1.3B_seq_parallel_32k.sh", """
sp_size=4
deepspeed pretrain_gpt.py --num-layers 24 --micro-batch-size 1 --tensor-model-parallel-size 1 --seq-length 32768 \\
  --ds-sequence-parallel-size ${sp_size} --deepspeed --zero-stage 1 --bf16
""", 16, refused="--ds-sequence-parallel-size"),
    sh(f"{DS} examples_deepspeed/rebase/ds_pretrain_gpt_1.3B.sh", """
zero_stage=0
mp_size=2
batch_size=2
cat <<EOT > ds_config.json
{ "train_micro_batch_size_per_gpu": ${batch_size}, "zero_optimization": { "stage": ${zero_stage} } }
EOT
deepspeed pretrain_gpt.py --tensor-model-parallel-size ${mp_size} --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --micro-batch-size ${batch_size} --global-batch-size 512 --fp16 \\
  --checkpoint-activations --deepspeed --deepspeed_config ds_config.json
""", 64, tp=2, dp=32, mbs=2, zero=0, batch=512, recompute="full"),
    sh(f"{DS} examples/pretrain_gpt_distributed_with_mp.sh", """
GPUS_PER_NODE=8
NNODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
python -m torch.distributed.launch $DISTRIBUTED_ARGS pretrain_gpt.py --tensor-model-parallel-size 2 \\
  --pipeline-model-parallel-size 2 --sequence-parallel --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
  --micro-batch-size 4 --global-batch-size 16 --seq-length 1024 --fp16
""", tp=2, pp=2, dp=2, sp=True, batch=16, hidden=1024, vocab=51200),
    sh(f"{DS} examples/evaluate_zeroshot_gpt.sh",
       "torchrun --nproc_per_node 8 ./tasks/main.py --task LAMBADA --num-layers 24 --micro-batch-size 8",
       refused="does not train"),
    # BigScience and BigCode
    sh(f"{BIG}/tr11-176B-ml/tr11-176B-ml.slurm",
       BLOOM.format(nodes=24, each=8, pp=12, tp=4, mbs=2, batch=2048, layers=70, hidden=14336, heads=112, width="bf16",
                    zero=0, more="--pad-vocab-size-to 250880 --embed-layernorm --pp-partition-method 'type:transformer'"),
       tp=4, pp=12, dp=4, gpus=192, mbs=2, batch=2048, zero=0, recompute="full", precision="bf16", depth=70,
       vocab_read=250880, told="--rampup-batch-size 16 16 9_765_625"),
    sh(f"{BIG}/tr1-13B-base/tr1-13B-round1.slurm",
       BLOOM.format(nodes=128, each=4, pp=4, tp=2, mbs=1, batch=1024, layers=40, hidden=5120, heads=32, width="fp16",
                    zero=1, more="--ffn-hidden-size 20480"),
       tp=2, pp=4, dp=64, gpus=512, batch=1024, zero=1, precision="fp16", ffn=20480, vocab=50304),
    sh(f"{BIG}/tr8b-104B/tr8b-104B-emb-norm-64n.slurm",
       BLOOM.format(nodes=64, each=4, pp=32, tp=4, mbs=1, batch=2048, layers=64, hidden=11600, heads=80, width="fp16",
                    zero=1, more="--embed-layernorm"),
       tp=4, pp=32, dp=2, gpus=256, zero=1, hidden=11600, vocab=50304, told="--embed-layernorm"),
    sh(f"{BIG}/tr13-mtf/tr13-176B-mtf-xp3capmixnewcodelonglossseq.slurm",
       BLOOM.format(nodes=36, each=8, pp=72, tp=1, mbs=1, batch=2048, layers=70, hidden=14336, heads=112, width="bf16",
                    zero=0, more="--pad-vocab-size-to 250880 --pp-partition-method 'type:transformer|embedding'"),
       tp=1, pp=72, dp=4, gpus=288, told="--pp-partition-method 'type:transformer|embedding'"),
    sh(f"{BIG}/tr14-mup/tr14-2B7-mup.slurm", """
#SBATCH --nodes=8
GPUS_PER_NODE=8
NNODES=8
CMD="pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --num-layers 32 --hidden-size 2560 \\
  --num-attention-heads 32 --seq-length 2048 --micro-batch-size 16 --global-batch-size 512 --fp16 \\
  --checkpoint-activations"
LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD"
""", tp=2, dp=32, mbs=16, gpus=64, framework="megatron-apex", flash=False, recompute="full"),
    sh(f"{CODE}/pretrain_bigcode_model.slurm", """
#SBATCH --nodes=64
#SBATCH --gres=gpu:8
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
GPT_ARGS="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --sequence-parallel --num-layers 40 \\
  --hidden-size 6144 --num-attention-heads 48 --attention-head-type multiquery --seq-length 8192 --micro-batch-size 1 \\
  --global-batch-size 512 --bf16 --use-flash-attn --use-distributed-optimizer"
CMD=" pretrain_gpt.py $GPT_ARGS"
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
clear; srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID --role \\$SLURMD_NODENAME: $CMD"
""", tp=4, pp=4, dp=32, gpus=512, sp=True, zero=1, seq=8192, kv_heads=1, vocab=49152),
    sh(f"{CODE}/pretrain_gpt_1B_santacoder.sh", """
python -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
  --tensor-model-parallel-size 1 --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
  --attention-head-type multiquery --seq-length 2048 --micro-batch-size 2 --global-batch-size 192 --fp16 \\
  --recompute-activations
""", 96, dp=96, mbs=2, batch=192, recompute="selective", kv_heads=1, vocab=49152),
    # Pai-Megatron-Patch
    sh(f"{PAI}/llama3_1/run_mcore_llama3_1.sh", BY_POSITION, 8, "dsw", "8B", "1", "8", "128", "bf16", "4", "2", "true",
       "true", "sel", tp=4, pp=2, dp=1, sp=True, zero=1, recompute="selective", overlap=("grad", "param", "tp"),
       depth=32, kv_heads=8, vocab=128512, told="--extra-vocab-size 256"),
    sh(f"{PAI}/qwen2_5/run_mcore_qwen.sh", BY_POSITION, 8, "dsw", "0.5B", "1", "8", "128", "fp8", "1", "1", "true",
       "false", "full", tp=1, dp=8, sp=False, zero=0, recompute="full", precision="fp8", overlap=("grad", "param")),
    sh(f"{PAI}/llama3_1/run_mcore_llama3_1.sh # without its parameters", BY_POSITION, 8, refused="a whole number"),
    # Megatron-Bridge
    sh(f"{BRIDGE} examples/models/nemotron/nemotron_3/nano/slurm_pretrain.sh", """
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
MODEL_NAME=nemotron_3_nano
PARALLELISM_CONFIGS=("4,1,8,1,True" "2,2,8,1,True" "2,1,8,2,True")
CONTAINER_IMAGE=""
if [ -z "$CONTAINER_IMAGE" ]; then echo "must be set"; exit 1; fi
for CONFIG in "${PARALLELISM_CONFIGS[@]}"; do
    IFS=',' read -r TP PP EP CP SP <<< "$CONFIG"
    CLI_OVERRIDES="train.global_batch_size=32 train.micro_batch_size=1 dataset.seq_length=512 model.seq_length=512 \\
        model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP \\
        model.expert_model_parallel_size=$EP model.sequence_parallel=$SP model.context_parallel_size=$CP"
    CMD="uv run --no-sync python scripts/training/run_recipe.py"
    CMD="$CMD --recipe ${MODEL_NAME}_pretrain_config"
    CMD="$CMD $CLI_OVERRIDES"
    srun --mpi=pmix bash -c "$CMD"
    RUN_EXIT=$?
    if [ $RUN_EXIT -ne 0 ]; then exit $RUN_EXIT; fi
done
""", refused="has several, 3"),
    sh(f"{BRIDGE} examples/models/nemotron/nemotron_3/nano/slurm_pretrain.sh # its second", """
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
for CONFIG in "4,1,8,1,True" "2,2,8,1,True" "2,1,8,2,True"; do
    IFS=',' read -r TP PP EP CP SP <<< "$CONFIG"
    srun python scripts/training/run_recipe.py --recipe r train.global_batch_size=32 train.micro_batch_size=1 \\
        model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP model.seq_length=512 \\
        model.expert_model_parallel_size=$EP model.sequence_parallel=$SP model.context_parallel_size=$CP
done
""", pick="2", tp=2, pp=2, ep=8, dp=8, sp=True, gpus=32, batch=32, framework="megatron-bridge", zero=1,
       told="ddp.use_distributed_optimizer is the recipe's, taken as on"),
    sh(f"{BRIDGE} examples/training_features/long_context/qwen3_600m_sft_128k.sh", """
MODEL_NAME=qwen3_600m
uv run python -m torch.distributed.run --nproc_per_node=8 scripts/training/run_recipe.py \\
    --recipe ${MODEL_NAME}_sft_128k_config \\
    train.global_batch_size=2 \\
    train.micro_batch_size=1 logger.log_interval=1
""", refused="model.tensor_model_parallel_size"),
    # Hugging Face Trainer on a command line
    sh("lm-sys/FastChat scripts/train_vicuna_7b.sh", """
torchrun --nproc_per_node=4 --master_port=20001 fastchat/train/train_mem.py \\
    --model_name_or_path ~/model_weights/llama-7b  --bf16 True \\
    --per_device_train_batch_size 2 --per_device_eval_batch_size 16 --gradient_accumulation_steps 16 \\
    --evaluation_strategy "steps" --weight_decay 0. --lr_scheduler_type "cosine" \\
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' --tf32 True \\
    --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True
""", gpus=4, dp=4, mbs=2, batch=128, zero=3, seq=2048, recompute="full", task="finetune", framework="fsdp-eager"),
    sh("lm-sys/FastChat scripts/train_lora.sh", """
deepspeed fastchat/train/train_lora.py --model_name_or_path lmsys/vicuna-7b-v1.5 --lora_r 8 --lora_alpha 16 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --model_max_length 2048 --q_lora True \\
    --deepspeed $PATH_TO_DEEPSPEED_CONFIG --gradient_checkpointing True
""", 8, refused="deepspeed"),
    sh(f"{CHAT}/step1_supervised_finetuning/training_scripts/llama2/run_llama2_7b.sh", """
OUTPUT=$1
ZERO_STAGE=$2
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
deepspeed main.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --max_seq_len 512 \\
   --gradient_accumulation_steps 1 --gradient_checkpointing --zero_stage $ZERO_STAGE --deepspeed \\
   --output_dir $OUTPUT &> $OUTPUT/training.log
""", 8, "out", "2", zero=2, dp=8, mbs=4, batch=32, seq=512, recompute="full", recipe="llama-2-7b"),
    sh("tatsu-lab/stanford_alpaca README.md # its first command", """
torchrun --nproc_per_node=4 --master_port=<your_random_port> train.py --model_name_or_path <your_path_to_hf_llama> \\
    --bf16 True --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --fsdp "full_shard auto_wrap" \\
    --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' --tf32 True
""", gpus=4, mbs=4, batch=128, zero=3),
]  # fmt: skip
