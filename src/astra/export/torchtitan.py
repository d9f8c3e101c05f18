"""torchtitan 0.3: a ``plan.py`` that starts from the model's own recipe and sets what the plan decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from astra.catalog import runtimes
from astra.export.base import Exporter, Launch, Left, joined, one_pool, python_header
from astra.export.launch_script import preamble, torchrun
from astra.export.quoting import python
from astra.rules.can import recipe_of
from astra.spec.model import Rotary

# Its converters: their module, that of linear layers and that of experts. The output stays in bf16.
QUANTISED: Final[dict[str, tuple[str, str, dict[str, object], str]]] = {
    "fp8-rowwise": (
        "float8", "Float8LinearConverter", {"recipe_name": "rowwise", "filter_fqns": ["lm_head"]},
        "Float8GroupedExpertsConverter",
    ),
    "mxfp8": ("mx", "MXFP8LinearConverter", {"fqns": ["layers"]}, "MXFP8GroupedExpertsConverter"),
}  # fmt: skip
_NEWER_TORCH: Final = "torchtitan 0.3 runs pipelines on torch 2.14 or newer: pip install torch==2.14.1"
SCHEDULES: Final = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}


def _files(launch: Launch) -> dict[str, str]:
    return {
        "plan.py": configuration(launch),
        "launch.sh": _script(launch),
    }


def _left(launch: Launch) -> list[Left]:
    every = f"`--checkpoint.enable` writes one every {launch.save_interval} steps"
    meant = "a folder of Hugging Face's weights to start from; without it the script stops"
    return [
        *([Left("`PRETRAINED_CHECKPOINT`", meant)] if launch.workload.task == "finetune" else []),
        Left("`--hf-assets-path`", "the tokenizer; the recipe's place without it"),
        Left("`--dataloader.dataset`", "the data; the recipe's without it"),
        Left("checkpoints", f"{every}; none without it"),
    ]


TORCHTITAN: Final = Exporter(
    name="torchtitan",
    title="torchtitan configuration",
    verified="torchtitan 0.3.0 with torch 2.13.0: its own config manager, ParallelDims and model, on the meta device",
    runtime="torchtitan",
    limits=(one_pool("torchtitan"),),
    made=_files,
    left=_left,
)


def module_names(layers: tuple[int, ...]) -> list[list[str]]:
    """The modules of each virtual stage."""
    stages, start = [], 0
    for count in layers:
        stages.append([f"layers.{index}" for index in range(start, start + count)])
        start += count
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "lm_head"]
    return stages


def settings(launch: Launch) -> dict[str, dict[str, object]]:
    """Everything the plan decides, by section."""
    strategy, workload = launch.strategy, launch.workload
    piped = strategy.pp > 1
    sharded = (strategy.shard or strategy.dp) if strategy.zero == 3 else 1
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": strategy.dp // sharded,
        "data_parallel_shard_degree": sharded,
        "fsdp_reshard_after_forward": strategy.reshard if strategy.zero == 3 else "default",
        "tensor_parallel_degree": strategy.tp,
        "enable_sequence_parallel": strategy.sp,
        "context_parallel_degree": strategy.cp,
        "expert_parallel_degree": strategy.ep,
        "pipeline_parallel_degree": strategy.pp,
        "spmd_backend": "partial_dtensor",  # the default needs a torch newer than the one verified
    }
    if piped:
        parallelism["pipeline_parallel_schedule"] = SCHEDULES[strategy.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = strategy.mbs
        parallelism["module_fqns_per_model_part"] = module_names(launch.layers)
    training: dict[str, object] = {
        "local_batch_size": strategy.mbs * (launch.microbatches if piped else 1),
        "global_batch_size": workload.global_batch,
        "seq_len": workload.seq,
        "mixed_precision_param": "bfloat16",
    }
    if piped or strategy.ep > 1:
        training["disable_cuda_graphs"] = True  # neither pipelines nor token exchange are captured
    if workload.tokens is not None:
        training["steps"] = max(1, round(workload.tokens / workload.tokens_per_step))
    # The plan counts with compiled blocks and a compiled loss.
    compiled: dict[str, object] = {"enable": True, "components": ["model", "loss"]}
    kept: dict[str, object] = {"interval": launch.save_interval}
    return {"training": training, "parallelism": parallelism, "compile": compiled, "checkpoint": kept}


def rope(rotary: Rotary, seq: int) -> dict[str, object]:
    """Rotary positions in torchtitan's words; the table is as long as the sequence."""
    rotary_fields: dict[str, object] = {"theta": rotary.base, "max_seq_len": seq, "scaling": "none"}
    if rotary.scaling == "llama3":
        rotary_fields |= {"scaling": "llama", "scaling_factor": rotary.factor, "low_freq_factor": rotary.low_frequency}
        rotary_fields |= {"high_freq_factor": rotary.high_frequency}
        rotary_fields |= {"original_max_position_embeddings": rotary.original_positions}
    if rotary.scaling == "yarn":
        rotary_fields |= {
            "scaling": "yarn",
            "rope_factor": rotary.factor,
            "original_seq_len": rotary.original_positions,
        }
        rotary_fields |= {"beta_fast": rotary.beta_fast, "beta_slow": rotary.beta_slow, "truncate": rotary.rounded}
    return rotary_fields


def configuration(launch: Launch) -> str:
    """The Python module torchtitan imports."""
    recipe = recipe_of(runtimes.runtime(TORCHTITAN.runtime), launch.model)
    if recipe is None:
        raise ValueError(launch.model.name)
    module, function = recipe.split(".")
    lines = python_header(launch, TORCHTITAN.verified)
    tuned = launch.workload.task == "finetune"
    lines += ["import os", ""] * tuned
    lines += ["from torchtitan.trainer import Trainer"]
    lines += [f"from torchtitan.models.{module}.config_registry import {function}"]
    full = launch.strategy.recompute == "full"
    lines += ["from torchtitan.distributed.activation_checkpoint import FullAC"] * full
    converters = list(_converters(launch))
    lines += [f"from torchtitan.components.quantization.{where} import {name}" for where, name, _ in converters]
    lines += _pipeline_check() if launch.strategy.pp > 1 else []
    lines += ["", "", "def plan() -> Trainer.Config:", f"    config = {function}()"]
    for section, values in settings(launch).items():
        lines += [f"    config.{section}.{name} = {python(value)}" for name, value in values.items()]
    if tuned:
        lines += ["    config.checkpoint.enable = True"]
        lines += ['    config.checkpoint.initial_load_path = os.path.abspath(os.environ["PRETRAINED_CHECKPOINT"])']
        lines += ["    config.checkpoint.initial_load_in_hf = True"]
    if launch.model.rotary is not None:
        lines += ["    for layer in config.model_spec.model.layers:"]
        rotary_fields = rope(launch.model.rotary, launch.workload.seq)
        lines += [f"        layer.attention.rope.{name} = {python(value)}" for name, value in rotary_fields.items()]
    for _, name, options in converters:
        said = ", ".join(f"{key}={python(value)}" for key, value in options.items())
        lines += [f"    converter = {name}.Config({said}).build()"]
        lines += ["    config.model_spec.model = converter.convert(config.model_spec.model)"]
    lines += [f"    config.activation_checkpoint = {'FullAC.Config()' if full else 'None'}", "    return config"]
    return joined(lines)


def _pipeline_check() -> list[str]:
    """Stop with a sentence where torch's pipelines cannot be given micro-batches one by one, as torchtitan does."""
    return [
        "from inspect import signature",
        "from torch.distributed.pipelining.schedules import PipelineScheduleSingle",
        "",
        'if "arg_mbs" not in signature(PipelineScheduleSingle.step).parameters:',
        f"    raise SystemExit({python(_NEWER_TORCH)})",
    ]


def _converters(launch: Launch) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Module, class and options of each converter that the precision takes; everything is compiled."""
    if launch.workload.precision in QUANTISED:
        where, linear, options, experts = QUANTISED[launch.workload.precision]
        yield where, linear, {**options, "model_compile_enabled": True}
        if launch.model.moe is not None:
            yield where, experts, {"model_compile_enabled": True}


def _script(launch: Launch) -> str:
    lines = preamble(launch, TORCHTITAN.verified)
    if launch.workload.task == "finetune":
        lines += ['export PRETRAINED_CHECKPOINT="${PRETRAINED_CHECKPOINT:?name the folder of weights to start from}"']
    lines += ['export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"', ""]
    return joined([*lines, torchrun(launch, "-m torchtitan.train", '--module plan --config plan "$@"')])
