"""A GPT-2-like language model from a random start, privately and plainly: perplexity on texts that were held out.

The corpus ships with Python and with what dperm depends on: a record is one docstring of a function, class or module, as bytes.
Records that are equal are one record, and whole files are held out, so that no text is on both sides.
python examples/gpt2.py [--epsilon 3 8] [--epochs 1] [--batch 256] [--layers 2] [--width 192] [--transformers]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import math
import sysconfig
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import PrivateTrainer
from dperm.torch.language import Tokens, causal_language_loss

END, PADDING, SIZE = 256, 257, 258  # after the 256 bytes: a public vocabulary, made of no record
PACKAGES = ("numpy", "scipy", "sklearn", "torch")
HELD_OUT = 10  # one file in so many
Record = dict[str, list[int]]


class Block(nn.Module):
    """Attention and a wide layer, each behind its normalisation (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, length, width = x.shape
        parts = self.attention(self.norm_one(x)).view(b, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(b, length, width))
        return x + self.mlp(self.norm_two(x))


class GPT2(nn.Module):
    """GPT-2 at a small size: learned positions, tied head, weights drawn with deviation 0.02."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SIZE, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 32)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # padding is on the right, where no token before it looks: the mask is not needed
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def fresh(options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of random weights, always the same ones, and its optimizer."""
    torch.manual_seed(0)
    layers, width, length = options.layers, options.width, options.length
    if options.transformers:
        from transformers import GPT2Config, GPT2LMHeadModel  # of the extra "zoo"

        size = {"n_layer": layers, "n_embd": width, "n_head": max(1, width // 32), "n_positions": length, "vocab_size": SIZE}
        without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": END, "eos_token_id": END}
        model = GPT2LMHeadModel(GPT2Config(**size, **without, use_cache=False))
    else:
        model = GPT2(layers, width, length)
    model.to(options.device)
    return model, torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)


def files() -> Iterator[Path]:
    """Sources of Python's library and of the packages, without tests."""
    standard, packages = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
    roots = [standard, *(packages / name for name in PACKAGES)]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if not {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(parts):
                yield path


def docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in others' strings
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) >= 40:
                yield inspect.cleandoc(text)


def corpus(most: int | None) -> tuple[list[Record], list[Record]]:
    """(records to train on, records held out)."""
    seen, parts = set[str](), ([], [])
    for path in files():
        held_out = int(hashlib.sha256(path.name.encode()).hexdigest(), 16) % HELD_OUT == 0
        for text in docstrings(path):
            if text not in seen:
                seen.add(text)
                parts[held_out].append({"input_ids": [*text.encode(), END]})
        if most is not None and all(len(part) >= most for part in parts):
            break
    return parts[0][:most], parts[1][:most]


def collated(records: list[Record], collate: Tokens, device: str) -> tuple[dict[str, Tensor], Tensor]:
    """(inputs of the model, labels) of a batch."""
    batch: Any = collate(records)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    return batch, batch.pop("labels")


@torch.no_grad()
def perplexity(model: nn.Module, records: list[Record], collate: Tokens) -> float:
    """exp of the mean loss of a byte, over the bytes of all records."""
    total, count, device = 0.0, 0, str(next(model.parameters()).device)
    for start in range(0, len(records), 64):
        batch, labels = collated(records[start : start + 64], collate, device)
        counted = (labels[:, 1:] != -100).sum(1)
        total += float((causal_language_loss(model(**batch), labels) * counted).sum())
        count += int(counted.sum())
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[3.0, 8.0])
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--length", type=int, default=32, help="bytes of a record that are used")
    parser.add_argument("--records", type=int, help="at most so many; all if left out")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--private-only", action="store_true", help="leave plain training out")
    parser.add_argument("--transformers", action="store_true", help="the model of Transformers, GPT2LMHeadModel")
    options = parser.parse_args()
    records, held_out = corpus(options.records)
    collate, size = Tokens(pad_id=PADDING, max_length=options.length), len(records)
    print(f"{size:,} records to train on, {len(held_out):,} held out")

    model, optimizer = fresh(options)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, all trained")
    print(f"untrained: perplexity {perplexity(model, held_out, collate):.1f} a byte")
    steps, begun = math.ceil(options.epochs * size / options.batch) * (not options.private_only), time.perf_counter()
    for _ in range(steps):
        drawn = [records[place] for place in torch.randint(size, (options.batch,)).tolist()]
        batch, labels = collated(drawn, collate, options.device)
        optimizer.zero_grad()
        causal_language_loss(model(**batch), labels).mean().backward()
        optimizer.step()
    if steps:
        seconds = time.perf_counter() - begun
        print(f"plain, {steps} steps in {seconds:.0f} s: perplexity {perplexity(model, held_out, collate):.2f} a byte")
    for epsilon in options.epsilon:
        model, optimizer = fresh(options)
        begun = time.perf_counter()
        trainer = PrivateTrainer(
            model,
            causal_language_loss,
            optimizer,
            epsilon=epsilon,
            delta=1e-6,
            epochs=options.epochs,
            expected_batch_size=options.batch,
            clipping_norm=1.0,
            public_size=size,
            collate_fn=collate,
            label="gpt2 example",
        ).fit(records)
        seconds = time.perf_counter() - begun
        print(f"ε = {epsilon:g} in {seconds:.0f} s: perplexity {perplexity(model, held_out, collate):.2f} a byte")
        print(trainer.certificate)


if __name__ == "__main__":
    main()
