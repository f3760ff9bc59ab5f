"""Private fine-tuning of a small transformer by low-rank adapters (LoRA): the base model stays frozen.

The base is built and pretrained here, on public text (this project's own documentation); the private records are lines
that follow another rule. python examples/lora.py [--epsilon 2] [--steps 200]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import PrivateTrainer

LENGTH, WIDTH = 32, 64
RECORDS = 2000


class Adapter(nn.Module):
    """A frozen linear layer plus a trainable product of two thin ones, zero at the start (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.out: nn.Module = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm_one(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.norm_two(x))


class Language(nn.Module):
    """Bytes in, scores of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128)

    def forward(self, x: Tensor) -> Tensor:
        states = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


def next_byte(outputs: Tensor, goals: Tensor) -> Tensor:
    """(b,) mean cross entropy of a line's bytes."""
    return F.cross_entropy(outputs.transpose(1, 2), goals, reduction="none").mean(1)


def pretrained(steps: int) -> Language:
    """The public part: no privacy is spent on public text."""
    folder = Path(__file__).resolve().parents[1]
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("docs/*.md")))
    data = torch.tensor([min(ord(letter), 127) for letter in text])
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - LENGTH - 1, (64, 1))
        lines = data[starts + torch.arange(LENGTH + 1)]
        optimizer.zero_grad()
        next_byte(model(lines[:, :-1]), lines[:, 1:]).mean().backward()
        optimizer.step()
    return model


def private_lines(count: int) -> tuple[Tensor, Tensor]:
    """Sensitive records: visits of made-up patients."""
    names, wards = ["ada", "bo", "cy", "dee"], ["surgery", "cardiology", "oncology"]
    made = [
        f"{names[torch.randint(4, ()).item()]} seen in {wards[torch.randint(3, ()).item()]} on day {d % 28}" for d in range(count)
    ]
    table = torch.tensor([[ord(letter) for letter in line.ljust(LENGTH + 1)[: LENGTH + 1]] for line in made])
    return table[:, :-1], table[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=200, help="of public pretraining")
    parser.add_argument("--epochs", type=float, default=10.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = pretrained(options.steps).requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block) and isinstance(block.qkv, nn.Linear) and isinstance(block.out, nn.Linear)
        block.qkv, block.out = Adapter(block.qkv), Adapter(block.out)
    model.head.requires_grad_(True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lines, held_out = private_lines(RECORDS), private_lines(200)
    with torch.no_grad():
        before = float(next_byte(model(held_out[0]), held_out[1]).mean())
    trainer = PrivateTrainer(
        model,
        next_byte,
        torch.optim.AdamW(trained, lr=3e-3),
        epsilon=options.epsilon,
        delta=1e-5,
        epochs=options.epochs,
        expected_batch_size=200,
        clipping_norm=0.5,
        public_size=RECORDS,
        label="lora example",
    ).fit(lines)
    with torch.no_grad():
        after = float(next_byte(model(held_out[0]), held_out[1]).mean())
    count, whole = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters())
    print(f"{count:,} of {whole:,} parameters trained; loss per byte of held-out lines {before:.2f} before, {after:.2f} after")
    print(trainer.certificate)


if __name__ == "__main__":
    main()
