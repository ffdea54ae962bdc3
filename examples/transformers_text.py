"""A small language model with Transformers' `Trainer`, distributed by laconic; it downloads nothing.

    torchrun --nproc-per-node 2 examples/transformers_text.py --strategy "local(8) / bf16+ef"

Against the script with a plain `Trainer` two lines have changed; the comments "was" have them as they were.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from laconic.integrations.transformers import LaconicTrainer  # was: from transformers import Trainer

CONTEXT = 24


class Lines(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Pieces of a Python source that everybody has, byte by byte."""

    def __init__(self) -> None:
        self.bytes = torch.tensor(list(Path(argparse.__file__).read_bytes()[:20_000]))

    def __len__(self) -> int:
        return (len(self.bytes) - CONTEXT) // 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self.bytes[4 * index : 4 * index + CONTEXT]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="bsp")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--folder", default="transformers_text")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    set_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": CONTEXT, "vocab_size": 256}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        options.folder,
        max_steps=options.steps,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="steps" if options.save_every else "no",
        save_steps=options.save_every or 500,
        disable_tqdm=True,
    )
    data = Lines()
    named = {"model": model, "args": arguments, "train_dataset": data}
    trainer = LaconicTrainer(strategy=options.strategy, **named)  # was: Trainer(**named)
    trainer.train(resume_from_checkpoint=options.resume)
    if trainer.is_world_process_zero():
        total = sum(parameter.double().sum() for parameter in trainer.model.parameters())
        print(f"weights {total.item()!r}, training loss {trainer.state.log_history[-1]['train_loss']!r}")


if __name__ == "__main__":
    main()
