# -*- coding: utf-8 -*-
# Plan of Astra 0.0: llama-2-7b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp1 dp16 mbs1 zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=bf16 reshard=always
# Verified with transformers 5.12.1 and peft 0.21.2: trained on a CPU.
"""Train a Hugging Face model as planned. DATA is a dataset's name or a text file; without it tokens are random."""
import argparse
import json
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

SEQ = int(os.environ["SEQ_LENGTH"])
LR = float(os.environ.get("LR", "1e-4"))
TP = 1  # ranks that share a replica, and its samples


def model():
    config = AutoConfig.from_pretrained(os.environ["MODEL"])  # its shape, not its weights
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")


def data(vocabulary):
    """Samples of SEQ tokens each, the texts one after another."""
    if "DATA" not in os.environ:
        tokens = torch.randint(vocabulary, (int(os.environ.get("SAMPLES", 4096)), SEQ))
        return [{"input_ids": sample, "labels": sample} for sample in tokens]
    from datasets import load_dataset

    name, read = os.environ["DATA"], AutoTokenizer.from_pretrained(os.environ["MODEL"])
    kind = {"path": "text", "data_files": name} if os.path.exists(name) else {"path": name}
    texts = load_dataset(**kind, split="train")
    ends = [read.eos_token_id] if read.eos_token_id is not None else []
    tokens = torch.tensor([token for text in texts["text"] for token in (*read(text)["input_ids"], *ends)])
    samples = tokens[: len(tokens) // SEQ * SEQ].view(-1, SEQ)
    return [{"input_ids": sample, "labels": sample} for sample in samples]


class Training(Trainer):
    """The Trainer takes every rank for a replica, also those that share one."""

    def get_train_dataloader(self):
        if TP == 1:
            return super().get_train_dataloader()
        dealt = DistributedSampler(self.train_dataset, dist.get_world_size() // TP, dist.get_rank() // TP)
        size = self.args.per_device_train_batch_size
        return DataLoader(self.train_dataset, size, sampler=dealt, collate_fn=self.data_collator, drop_last=True)


def deepspeed(name):
    """DeepSpeed's file with this script's learning rate; the batch is what it says of one replica, times replicas."""
    with open(name, encoding="utf-8") as file:
        config = json.load(file)
    config.pop("train_batch_size")
    config["optimizer"]["params"]["lr"] = LR
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed")
    given = parser.parse_args()
    set_seed(42)  # the same first weights and samples on every rank
    made = model()
    arguments = TrainingArguments(
        output_dir=os.environ.get("SAVE", "checkpoints"),
        per_device_train_batch_size=int(os.environ["MICRO_BATCH_SIZE"]),
        gradient_accumulation_steps=int(os.environ["GRADIENT_ACCUMULATION_STEPS"]),
        max_steps=int(os.environ.get("STEPS", "1000")),
        learning_rate=LR,
        save_steps=int(os.environ.get("SAVE_INTERVAL", "1000")),
        save_strategy="steps" if "SAVE" in os.environ else "no",
        bf16=True,
        gradient_checkpointing=False,
        deepspeed=deepspeed(given.deepspeed) if given.deepspeed else None,
        # Gradients are reduced in every micro-batch, as planned: else all of them wait on every GPU for the last one.
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        report_to="none",
    )
    Training(model=made, args=arguments, train_dataset=data(made.config.vocab_size)).train()
