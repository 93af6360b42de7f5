"""A small language model with transformers' Trainer, which is given a compiled model, or compiles.

torchrun --nproc-per-node 2 examples/trainers/with_transformers.py --by-name
"""

import argparse
import gc
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import funcaot
from funcaot.dynamo import add_to_accelerate


class Counting(torch.utils.data.Dataset):
    """Sentences that count up from some number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) + index) % 16
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="inductor", help="eager compiles nothing")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="don't compile, to compare")
    parser.add_argument("--by-name", action="store_true", help="let the Trainer compile")
    args = parser.parse_args()
    add_to_accelerate()
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts))
    if not (args.plain or args.by_name):
        model = funcaot.compile(model, backend=args.backend)
    with tempfile.TemporaryDirectory() as path:
        arguments = TrainingArguments(
            path,
            max_steps=args.steps, per_device_train_batch_size=4, learning_rate=0.01,
            logging_steps=1, save_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True,
            torch_compile_backend="funcaot" if args.by_name else None,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=Counting())
        trainer.train()
    if trainer.is_world_process_zero():
        for step, entry in enumerate(trainer.state.log_history[: args.steps]):
            print(f"step {step}: loss {float(entry['loss']):.6f}")


if __name__ == "__main__":
    main()
    gc.collect()  # DDP's reducer may wait for ever if it is freed after its group.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # Its threads would abort the process.
