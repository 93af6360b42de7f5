"""A small language model with transformers' Trainer, which is given the compiled model.

    torchrun --nproc-per-node 2 examples/trainers/with_transformers.py

Its ``torch_compile_backend`` takes the backends that Accelerate lists, and no others.
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import funcaot


class Counting(Dataset):
    """Sentences that count up from some number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) + index) % 16
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="inductor", help="eager compiles nothing")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="don't compile, to compare")
    args = parser.parse_args()
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts))
    if not args.plain:
        model = funcaot.compile(model, backend=args.backend)
    with tempfile.TemporaryDirectory() as path:
        arguments = TrainingArguments(
            path,
            max_steps=args.steps, per_device_train_batch_size=4, learning_rate=0.01,
            logging_steps=1, save_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=Counting(64))
        trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        for step, loss in enumerate(losses):
            print(f"step {step}: loss {float(loss):.6f}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # Its threads would abort the process.


if __name__ == "__main__":
    main()
