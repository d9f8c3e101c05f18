"""Megatron-Bridge (NeMo): a program that takes the model's own recipe and sets everything the plan decides.

The settings are complete: what is off is said too, whatever the recipe has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from astra.catalog import models
from astra.export.base import Exporter, Launch, Left, header, joined, python_header, template
from astra.export.launch_script import node_sizes, preamble, torchrun
from astra.export.megatron import MEGATRON, environment, layout, sections
from astra.export.megatron_model import fp8_scaling, hybrid_stages
from astra.export.quoting import python, shell
from astra.files import load_toml
from astra.rules.can import of_shape
from astra.spec.model import ModelSpec

KINDS: Final = {"pretrain": "pretrain", "finetune": "sft", "lora": "peft"}  # by task
PLAIN: Final = "vanilla_gpt_pretrain_config"  # the recipe of no model in particular


@cache
def _recipes() -> dict[str, Any]:
    return load_toml(template("bridge_recipes.toml").encode())


class BridgeRecipe(NamedTuple):
    """What a plan starts from."""

    function: str  # of megatron.bridge.recipes
    kind: str  # pretrain, sft or peft, as the recipe sets itself up
    own: bool  # whether it builds the plan's model


def recipe_for(model: ModelSpec, task: str) -> BridgeRecipe:
    """The recipe of a model's shape and rotary positions, of the task's kind where there is one."""
    name = of_shape(model, _recipes())
    if name is None or model.rotary not in (None, models.model(name).rotary):
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    stem, kinds = _recipes()[name]["stem"], _recipes()[name]["kinds"]
    kind = KINDS[task] if KINDS[task] in kinds else "pretrain"
    if kind not in kinds:
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    return BridgeRecipe(f"{stem}_{kind}_config", kind, own=True)


Setting = tuple[str, str]
_PRECISION: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "nvfp4": "bf16_with_nvfp4_mixed"}
_FP8: Final = {
    "mxfp8": "bf16_with_mxfp8_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
}
_TARGETS: Final = {
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "attention": ("linear_qkv", "linear_proj"),
    "qkv": ("linear_qkv",),
}
_LATENT: Final = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")


def precision(launch: Launch) -> str:
    """The function that makes Megatron-Bridge's mixed-precision configuration."""
    scaled = fp8_scaling(launch)
    return _FP8[scaled] if scaled else _PRECISION[launch.workload.precision]


def adapted(launch: Launch) -> list[str]:
    """The projections that get adapters, in Megatron's names."""
    names = _TARGETS[launch.workload.lora_targets]
    latent = launch.model.mla is not None
    return [part for name in names for part in (_LATENT if latent and name == "linear_qkv" else (name,))]


class BridgeField(NamedTuple):
    """A row of ``data/bridge_fields.toml``."""

    name: str
    word: str  # the argument of Megatron-LM that decides it, or a word of ours; empty: it is the same in every plan
    off: str = ""  # said without it; empty: the field is left out
    given: str = ""  # said with it; empty: its value; []: the list of its values


@cache
def fields() -> dict[str, tuple[BridgeField, ...]]:
    """The fields, by the part they are in."""
    rows = load_toml(template("bridge_fields.toml").encode())
    return {part: tuple(BridgeField(*row) for row in rows[part]) for part in rows}


def overrides(launch: Launch) -> Iterator[Setting]:
    """Every setting the plan decides."""
    words, parts = _words(launch), fields()
    for field in (*parts["before"], *(parts["experts"] if launch.model.moe else ()), *parts["after"]):
        values = words.get(field.word)
        if values is not None and field.given == "[]":
            yield field.name, f"[{','.join(values)}]"
        elif values is not None:
            yield field.name, field.given or values[0]
        elif field.off:
            yield field.name, field.off


def _words(launch: Launch) -> dict[str, tuple[str, ...]]:
    """The arguments of Megatron-LM, and what is said besides or in another way."""
    strategy, workload, hybrid = launch.strategy, launch.workload, launch.model.state_space
    words: dict[str, tuple[str, ...] | None] = {
        flag: tuple(values) for flags in sections(launch).values() for flag, *values in flags
    }
    split = f"'{layout(launch.layers, workload.mtp or 0)}'" if strategy.pp > 1 else "null"
    steps = max(1, round(workload.tokens / workload.tokens_per_step)) if workload.tokens is not None else None
    hidden = strategy.vp > 1 and "p2p" in strategy.overlap
    words |= {
        "--num-virtual-stages-per-pipeline-rank": (str(strategy.vp),) if strategy.vp > 1 else None,
        "--pipeline-model-parallel-layout": (split,) if hybrid is None else None,
        "hybrid layers": None if hybrid is None else (f"'{hybrid_stages(hybrid, launch.layers)}'",),
        "--mtp-num-layers": (str(workload.mtp or "null"),) if launch.model.mtp_layers else None,
        "steps": None if steps is None else (str(steps),),
        "warm-up steps": None if steps is None else (str(steps // 100),),
        "offloaded layers": () if strategy.offload_layers else None,
        "save interval": (str(launch.save_interval),),
        "attention in fp8": () if strategy.attention == "fp8" else None,
        "aligned gathers": () if "param" in strategy.overlap and strategy.vp > 1 else None,
        "--no-overlap-p2p-communication": None if hidden else (),
    }
    return {word: values for word, values in words.items() if values is not None}


def _files(launch: Launch) -> dict[str, str]:
    lines = [*header(launch, BRIDGE.verified), *(f"{key}={value}" for key, value in overrides(launch))]
    return {
        "train.py": program(launch),
        "overrides.txt": joined(lines),
        "launch.sh": _script(launch),
    }


def _left(launch: Launch) -> list[Left]:
    left = []
    if not recipe_for(launch.model, launch.workload.task).own:
        left += [Left("`HF_MODEL`", "the model's Hugging Face name or folder; without it the script stops")]
    if launch.workload.task != "pretrain":
        left += [Left("`PRETRAINED_CHECKPOINT`", "the checkpoint to start from; without it the script stops")]
    left += [Left("`dataset` in `train.py`", "the data; that of the recipe until it is set")]
    left += [Left("`tokenizer.tokenizer_model=...`", "the tokenizer, behind the script's name")]
    left += [Left("`checkpoint.save=...`", f"a folder for checkpoints, written every {launch.save_interval} steps")]
    return left


_OTHER: Final = """
Megatron-Bridge 0.6.2 has no recipe of this model: its shape is read from the Hugging Face name or folder in `HF_MODEL`,
and everything else is of the plain recipe.
"""
_START: Final = """
The plan starts from trained weights: `PRETRAINED_CHECKPOINT` is a checkpoint of Megatron-Bridge, made of a Hugging Face
one with `AutoBridge.import_ckpt`. Without it the script stops.
"""


def _notes(launch: Launch) -> str:
    recipe, tuned = recipe_for(launch.model, launch.workload.task), launch.workload.task != "pretrain"
    needs = "HF_MODEL=/models/mine " * (not recipe.own) + "PRETRAINED_CHECKPOINT=/checkpoints/base " * tuned
    data = "SQuAD" if tuned else "mock"
    notes = template("bridge_notes.md").format(recipe=recipe.function, needs=needs, data=data)
    return notes + _OTHER * (not recipe.own) + _START * tuned


def program(launch: Launch) -> str:
    """The Python file: what is no scalar is set here, everything else by the overrides."""
    recipe, task = recipe_for(launch.model, launch.workload.task), launch.workload.task
    imports = ["from megatron.bridge import AutoBridge"] * (not recipe.own)
    imports += ["from megatron.bridge.peft.lora import LoRA"] * (task == "lora")
    imports += [f"from megatron.bridge.recipes import {recipe.function} as recipe"]
    imports += ["from megatron.bridge.recipes.utils.dataset_utils import default_squad_config"] * (task != "pretrain")
    body = template("bridge_train.txt").replace("@RUN", "pretrain" if task == "pretrain" else "finetune")
    body = body.replace("@IMPORTS", "\n".join(imports)).replace("@MIXED", precision(launch))
    settings = "\n".join(f"    {line}" for line in _settings(launch, recipe))
    return joined(python_header(launch, BRIDGE.verified)) + body.replace("@SETTINGS", settings)


def _settings(launch: Launch, recipe: BridgeRecipe) -> list[str]:
    strategy, workload = launch.strategy, launch.workload
    lines = []
    if not recipe.own:
        bridge = 'AutoBridge.from_hf_pretrained(os.environ["HF_MODEL"])'
        lines += [f"config.model = {bridge}.to_megatron_provider(load_weights=False)"]
    lines += [
        f"config.mixed_precision = {precision(launch)}()",
        "config.comm_overlap = None  # the overrides say it all",
    ]
    lines += [f"config.model.attention_backend = AttnBackend.{'auto' if strategy.flash else 'unfused'}"]
    for field in ("main_grads", "main_params"):
        lines += [f"config.optimizer.{field}_dtype = torch.float32"]
    moments = "bfloat16" if strategy.moments == "bf16" else "float32"
    lines += [f"config.optimizer.{field}_dtype = torch.{moments}" for field in ("exp_avg", "exp_avg_sq")]
    lines += ['config.env_vars.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # launch.sh knows']
    if workload.task == "pretrain":
        return lines
    packed = strategy.mbs == 1  # Megatron-Bridge packs samples into micro-batches of one
    multiple = strategy.cp * (2 if strategy.cp > 1 else 1) * (strategy.tp if strategy.sp else 1)
    lines += [f"config.dataset = default_squad_config({workload.seq}, {packed}, {multiple})"]
    if packed and strategy.graphs != "none":  # graphs want the same number of samples in every pack
        lines += ["config.dataset.offline_packing_specs.pad_cu_seqlens = True"]
    lines += ['config.checkpoint.pretrained_checkpoint = os.environ["PRETRAINED_CHECKPOINT"]']
    if strategy.cp > 1:  # ranks whose tokens are all masked would divide by zero
        lines += ["config.model.calculate_per_token_loss = True", "config.ddp.average_in_collective = False"]
    if workload.task == "lora":
        rank, names = workload.lora_rank, python(adapted(launch))
        lines += [f"config.peft = LoRA(dim={rank}, alpha={rank}, target_modules={names})"]
    return lines


def _script(launch: Launch) -> str:
    lines = preamble(launch, BRIDGE.verified)
    lines += node_sizes(launch)
    lines += [f"export {name}={shell(value)}" for name, value in environment(launch).items()]
    if not recipe_for(launch.model, launch.workload.task).own:
        lines += ['export HF_MODEL="${HF_MODEL:?name the model: a Hugging Face name or folder}"']
    if launch.workload.task != "pretrain":
        lines += ['export PRETRAINED_CHECKPOINT="${PRETRAINED_CHECKPOINT:?name the checkpoint to start from}"']
    return joined([*lines, "", torchrun(launch, '"$HERE/train.py"', '"$@"')])


BRIDGE: Final = Exporter(
    name="megatron-bridge",
    title="Megatron-Bridge (NeMo) recipe and overrides",
    verified="Megatron-Bridge 0.6.2: its own recipes, overrides and configuration, finalized by megatron-core 0.19.2",
    runtime="megatron-bridge",
    limits=MEGATRON.limits,
    made=_files,
    notes=_notes,
    left=_left,
)
