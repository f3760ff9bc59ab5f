"""A generator that learns from a private discriminator (DPGAN; Xie et al. 2018), of scikit-learn's digits and their classes.

The discriminator is trained privately: each record is paired with a picture that the generator makes for its class, of a code
that is drawn for the record in secret, and what both give is one loss of the record. The generator is trained in between by
`public_step`, on the discriminator as it was released: it sees no record, so that its pictures cost what the discriminator costs.

python examples/gan.py [--epsilon 8] [--pictures folder]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import PrivateTrainer

CLASSES, CODE, PIXELS = 10, 16, 64


class Discriminator(nn.Module):
    """How real a picture (b, 64) of a class looks, (b,)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.inward, self.what = nn.Linear(PIXELS, width), nn.Embedding(CLASSES, width)
        self.middle, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        h = F.leaky_relu(self.inward(x) + self.what(label), 0.2)
        return self.last(F.leaky_relu(self.middle(h), 0.2))[:, 0]


class Generator(nn.Module):
    """Pictures (b, 64) in [0, 1] of codes (b, 16) and classes (b,)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.inward, self.what = nn.Linear(CODE, width), nn.Embedding(CLASSES, width)
        self.middle, self.last = nn.Linear(width, width), nn.Linear(width, PIXELS)

    def forward(self, code: Tensor, label: Tensor) -> Tensor:
        h = F.leaky_relu(self.inward(code) + self.what(label), 0.2)
        return torch.sigmoid(self.last(F.leaky_relu(self.middle(h), 0.2)))


class PairedLoss:
    """(b,) of each record: the record should look real, and a picture that is generated for its class should not. The generator
    is held here, where it is no part of the private model; its weights at a step are those that the last public step left."""

    def __init__(self, discriminator: Discriminator, generator: Generator) -> None:
        self.discriminator, self.generator = discriminator, generator

    def __call__(self, real: Tensor, label: Tensor) -> Tensor:
        with torch.no_grad():
            made = self.generator(torch.randn(len(label), CODE), label)
        return F.softplus(-real) + F.softplus(self.discriminator(made, label))


class GeneratorStep:
    """One step of the generator towards pictures that the released discriminator takes for real."""

    def __init__(self, generator: Generator, batch: int = 128) -> None:
        self.generator, self.batch = generator, batch
        self.optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))

    def __call__(self, released: nn.Module) -> None:
        label = torch.randint(CLASSES, (self.batch,))
        made = self.generator(torch.randn(self.batch, CODE), label)
        self.optimizer.zero_grad()
        F.softplus(-released(made, label)).mean().backward()
        self.optimizer.step()


def trained(x: Tensor, y: Tensor, *, epochs: float, batch: int = 256, **budget: float) -> tuple[PrivateTrainer, Generator]:
    """The discriminator's trainer after its run, and the generator that learnt from it."""
    discriminator, generator = Discriminator(), Generator()
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    trainer = PrivateTrainer(
        discriminator,
        PairedLoss(discriminator, generator),
        optimizer,
        **budget,
        delta=1e-5,
        epochs=epochs,
        expected_batch_size=batch,
        clipping_norm=1.0,
        public_size=len(x),
        label="GAN example",
    )
    step_of_generator = GeneratorStep(generator)
    for _ in trainer.steps((x, y, y)):
        optimizer.step()
        trainer.public_step(step_of_generator)
    return trainer, generator


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, default=150.0)
    parser.add_argument("--pictures", type=Path, help="a folder for a sheet of generated pictures")
    options = parser.parse_args()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float() / 16, torch.tensor(labels)
    held_out = 300  # which are kept apart, to judge by
    trainer, generator = trained(x[held_out:], y[held_out:], epochs=options.epochs, epsilon=options.epsilon)
    label = torch.arange(1000) % CLASSES
    with torch.no_grad():
        made = generator(torch.randn(1000, CODE), label)
    real, made, answers = (x[:held_out].numpy(), y[:held_out].numpy()), made.numpy(), label.numpy()
    judge, pupil = LogisticRegression(max_iter=1000).fit(*real), LogisticRegression(max_iter=1000).fit(made, answers)
    print(f"{judge.score(made, answers):.0%} of the generated pictures are taken for their class by a classifier of real ones;")
    print(f"a classifier that learnt from generated pictures alone is right on {pupil.score(*real):.0%} of real ones")
    if options.pictures is not None:
        from PIL import Image

        options.pictures.mkdir(parents=True, exist_ok=True)
        rows = made[:40].reshape(4, 10, 8, 8).transpose(0, 2, 1, 3).reshape(32, 80)
        grey = (255 * rows).round().astype("uint8")
        Image.fromarray(grey).resize((320, 128), 0).save(options.pictures / "gan.png")
    print(trainer.certificate)


if __name__ == "__main__":
    main()
