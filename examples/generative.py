"""Five families of generative models, trained privately on pictures: a variational autoencoder, diffusion with classifier-free
guidance, a masked autoencoder, a normalising flow and an autoregressive model (PixelCNN).

Each is written as without privacy, one loss per record; what a model draws for a record (a code, a time and noise, a mask) is
that record's own, and with `views` drawn several times.

python examples/generative.py [--family vae] [--views 4] [--pictures folder]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from dperm.torch import PrivateTrainer

CLASSES = 10


class VAE(nn.Module):
    """A variational autoencoder (Kingma and Welling 2014) of pictures (b, 1, size, size) in [0, 1]."""

    def __init__(self, size: int, width: int = 128, code: int = 8) -> None:
        super().__init__()
        self.size, self.code = size, code
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(size * size, width), nn.GELU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, size * size))

    def forward(self, x: Tensor) -> tuple[Tensor, Normal]:
        mean, log_scale = self.encoder(x).chunk(2, 1)
        posterior = Normal(mean, log_scale.exp())
        return self.decode(posterior.rsample()), posterior

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z).view(-1, 1, self.size, self.size)

    @torch.no_grad()
    def sample(self, count: int) -> Tensor:
        return torch.sigmoid(self.decode(torch.randn(count, self.code)))


def negative_elbo(outputs: tuple[Tensor, Normal], x: Tensor) -> Tensor:
    """(b,) of each record, in nats a pixel."""
    logits, posterior = outputs
    likelihood = F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)
    prior = Normal(torch.zeros_like(posterior.mean), torch.ones_like(posterior.mean))
    return (likelihood + kl_divergence(posterior, prior).sum(1)) / x[0].numel()


class Diffusion(nn.Module):
    """Denoising diffusion (Ho et al. 2020) of pictures and classes, with classifier-free guidance (Ho and Salimans 2022): for
    each record a time, noise, and now and then no class. The forward returns the loss."""

    def __init__(self, size: int, width: int = 32, times: int = 100, dropped: float = 0.1) -> None:
        super().__init__()
        self.size, self.times, self.dropped = size, times, dropped
        kept = torch.cos(torch.linspace(0, 1, times + 1) * math.pi / 2 * 0.99).square()
        self.register_buffer("kept", kept[1:])  # the share of the picture that is left at each time
        self.inward = nn.Conv2d(1, width, 3, padding=1)
        self.when, self.what = nn.Embedding(times, width), nn.Embedding(CLASSES + 1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(3)
        )
        self.outward = nn.Conv2d(width, 1, 3, padding=1)

    def noise_in(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        h = self.inward(x)
        told = (self.when(time) + self.what(label))[:, :, None, None]
        for block in self.blocks:
            h = h + block(h + told)
        return self.outward(h)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        time = torch.randint(self.times, (len(x),))
        label = torch.where(torch.rand(len(x)) < self.dropped, CLASSES, label)
        noise, kept = torch.randn_like(x), self.kept[time][:, None, None, None]
        noisy = kept.sqrt() * (2 * x - 1) + (1 - kept).sqrt() * noise
        return F.mse_loss(self.noise_in(noisy, time, label), noise, reduction="none").mean((1, 2, 3))

    @torch.no_grad()
    def sample(self, count: int, guidance: float = 1.0) -> Tensor:
        x = torch.randn(count, 1, self.size, self.size)
        label = torch.arange(count) % CLASSES
        for step in reversed(range(self.times)):
            time, nothing = torch.full((count,), step), torch.full((count,), CLASSES)
            plain = self.noise_in(x, time, nothing)
            noise = plain + (1 + guidance) * (self.noise_in(x, time, label) - plain)
            kept, before = self.kept[step], self.kept[step - 1] if step else torch.ones(())
            clean = ((x - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
            share = kept / before
            spread = ((1 - before) / (1 - kept) * (1 - share)).sqrt()
            mean = (before.sqrt() * (1 - share) * clean + share.sqrt() * (1 - before) * x) / (1 - kept)
            x = mean + spread * torch.randn_like(x)
        return (x + 1) / 2


class MaskedAutoencoder(nn.Module):
    """A masked autoencoder (He et al. 2022) of 4 × 4 patches: each record's three quarters are hidden by a draw of its own."""

    def __init__(self, size: int, width: int = 32, hidden: float = 0.75) -> None:
        super().__init__()
        self.patch, self.count = size // 4, 16
        self.shown = self.count - int(hidden * self.count)
        self.inward, self.outward = nn.Linear(self.patch**2, width), nn.Linear(width, self.patch**2)
        self.place, self.token = nn.Parameter(0.02 * torch.randn(1, self.count, width)), nn.Parameter(torch.zeros(1, 1, width))
        self.encoder, self.decoder = (
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )

    def patches(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Patches (b, 16, p²) as they are thought to be, and which were hidden (b, 16)."""
        order = torch.rand(len(x), self.count).argsort(1)
        wide = order[:, :, None].expand(-1, -1, self.place.shape[2])
        tokens = (self.inward(self.patches(x)) + self.place).gather(1, wide[:, : self.shown])
        known = self.encoder(tokens)
        filled = torch.cat([known, self.token.expand(len(x), self.count - self.shown, -1)], 1)
        back = order.argsort(1)
        whole = filled.gather(1, back[:, :, None].expand_as(filled)) + self.place
        return self.outward(self.decoder(whole)), back >= self.shown

    @torch.no_grad()
    def completed(self, x: Tensor) -> Tensor:
        """Pictures whose hidden patches are filled in."""
        guess, hidden = self(x)
        patches = torch.where(hidden[:, :, None], guess, self.patches(x))
        return F.fold(patches.transpose(1, 2), x.shape[2:], self.patch, stride=self.patch)


def error_where_hidden(outputs: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """(b,) mean squared error over each record's hidden patches."""
    guess, hidden = outputs
    patch = int(guess.shape[2] ** 0.5)
    errors = (guess - F.unfold(x, patch, stride=patch).transpose(1, 2)).square().mean(2)
    return (errors * hidden).sum(1) / hidden.sum(1)


class Coupling(nn.Module):
    """Half of the pixels scale and shift the others (RealNVP; Dinh et al. 2017)."""

    def __init__(self, mask: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(len(mask), width), nn.GELU(), nn.Linear(width, 2 * len(mask)))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def _parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self.net(x * self.mask).chunk(2, 1)
        return log_scale.tanh() * (1 - self.mask), shift * (1 - self.mask)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._parameters_of(x)
        return x * log_scale.exp() + shift, log_scale.sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        log_scale, shift = self._parameters_of(z)
        return (z - shift) * (-log_scale).exp()


class Flow(nn.Module):
    """A normalising flow of pictures with noise on their grey levels; the forward returns log-densities (b,)."""

    def __init__(self, size: int, width: int = 64, layers: int = 4, levels: int = 16, margin: float = 0.05) -> None:
        super().__init__()
        self.size, self.levels, self.margin = size, levels, margin
        checkers = torch.arange(size * size) // size % 2 ^ torch.arange(size * size) % 2
        self.layers = nn.ModuleList(Coupling((checkers ^ number % 2).float(), width) for number in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        grey = (x * (self.levels - 1) + torch.rand_like(x)).flatten(1) / self.levels
        grey = self.margin + (1 - 2 * self.margin) * grey
        z = grey.logit()
        log_density = -(grey.log() + (1 - grey).log()).sum(1)
        for layer in self.layers:
            z, stretched = layer(z)
            log_density = log_density + stretched
        base = Independent(Normal(torch.zeros_like(z), torch.ones_like(z)), 1)
        return log_density + base.log_prob(z)

    @torch.no_grad()
    def sample(self, count: int) -> Tensor:
        z = torch.randn(count, self.size**2)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        grey = (torch.sigmoid(z) - self.margin) / (1 - 2 * self.margin)
        return grey.clamp(0, 1).view(-1, 1, self.size, self.size)


class MaskedConv(nn.Conv2d):
    """A convolution that sees pixels above and to the left, and with `itself` the pixel itself (van den Oord et al. 2016)."""

    def __init__(self, inward: int, outward: int, size: int, *, itself: bool) -> None:
        super().__init__(inward, outward, size, padding=size // 2)
        mask = torch.zeros(size, size)
        mask[: size // 2] = 1.0
        mask[size // 2, : size // 2 + itself] = 1.0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


class PixelCNN(nn.Module):
    """Chances of each pixel's grey level given the pixels before it: logits (b, levels, size, size)."""

    def __init__(self, size: int, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        self.size, self.levels = size, levels
        self.first = MaskedConv(1, width, 5, itself=False)
        self.middle = nn.ModuleList(MaskedConv(width, width, 3, itself=True) for _ in range(2))
        self.last = nn.Conv2d(width, levels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.middle:
            h = h + layer(F.gelu(h))
        return self.last(F.gelu(h))

    @torch.no_grad()
    def sample(self, count: int) -> Tensor:
        x = torch.zeros(count, 1, self.size, self.size)
        for row in range(self.size):
            for column in range(self.size):
                chances = self(x)[:, :, row, column].softmax(1)
                x[:, 0, row, column] = torch.multinomial(chances, 1)[:, 0] / (self.levels - 1)
        return x


def bits_of_levels(logits: Tensor, x: Tensor) -> Tensor:
    """(b,) cross entropy of the grey levels, in nats a pixel."""
    levels = (x[:, 0] * (logits.shape[1] - 1)).round().long()
    return F.cross_entropy(logits, levels, reduction="none").mean((1, 2))


def as_it_is(losses: Tensor, _: Tensor) -> Tensor:
    """The loss of a model whose forward returns it."""
    return losses


@dataclass(frozen=True)
class Family:
    """A model of pictures of a size, its loss per record, what it is trained on of pictures and their classes, and pictures that
    a trained model makes of some others."""

    model: Callable[[int], nn.Module]
    loss: Callable[..., Tensor]
    learning_rate: float = 3e-3
    data: Callable[[Tensor, Tensor], object] = lambda x, y: x
    pictures: Callable[..., Tensor] = lambda model, x: model.sample(len(x))
    draws: bool = True  # whether there is anything for views to differ in


FAMILIES = {
    "vae": Family(VAE, negative_elbo),
    "diffusion": Family(Diffusion, as_it_is, data=lambda x, y: (x, y, y)),
    "masked autoencoder": Family(MaskedAutoencoder, error_where_hidden, pictures=lambda model, x: model.completed(x)),
    "flow": Family(Flow, lambda log_density, x: -log_density / x[0].numel()),
    "pixelcnn": Family(PixelCNN, bits_of_levels, draws=False),
}


def pictures(name: str) -> tuple[Tensor, Tensor]:
    """Pictures (n, 1, size, size) in [0, 1], and their classes (n,): scikit-learn's digits, or a set of dperm's by name."""
    if name == "digits":
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    from dperm.data import load_images

    found = load_images(name)
    return torch.tensor(found.train_images[:, None]).float() / 255, torch.tensor(found.train_labels).long()


def trained(family: Family, x: Tensor, y: Tensor, *, epochs: float, views: int, **budget: float) -> PrivateTrainer:
    """The trainer of a new model, after its run; `budget` is its epsilon, or noise_multiplier."""
    model = family.model(x.shape[2])
    trainer = PrivateTrainer(
        model,
        family.loss,
        torch.optim.Adam(model.parameters(), lr=family.learning_rate),
        **budget,
        delta=1e-5,
        epochs=epochs,
        expected_batch_size=min(256, len(x) // 4),
        clipping_norm=1.0,
        public_size=len(x),
        views=views if family.draws else 1,
        label="generative example",
    )
    return trainer.fit(family.data(x, y), ema_decay=0.9, progress=False)


def in_rows(made: Tensor, folder: Path, name: str) -> None:
    from PIL import Image

    rows = torch.cat([torch.cat(list(row[:, 0]), 1) for row in made.clamp(0, 1).split(8)], 0)
    grey = (255 * rows).round().to(torch.uint8).numpy()
    Image.fromarray(grey).resize((4 * grey.shape[1], 4 * grey.shape[0]), 0).save(folder / f"{name.replace(' ', '-')}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, action="append", help="all, where none is named")
    parser.add_argument("--data", default="digits", help="digits, mnist or fashion_mnist")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, default=40.0)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--pictures", type=Path, help="a folder for a sheet of pictures of each family")
    options = parser.parse_args()
    torch.manual_seed(0)
    x, y = pictures(options.data)
    shown = len(x) // 10
    for name in options.family or FAMILIES:
        family = FAMILIES[name]
        trainer = trained(family, x[shown:], y[shown:], epochs=options.epochs, views=options.views, epsilon=options.epsilon)
        model = trainer.model.eval()
        with torch.no_grad():
            inputs = (x[:shown], y[:shown]) if name == "diffusion" else (x[:shown],)
            loss = float(family.loss(model(*inputs), x[:shown]).mean())
        print(f"{name}: held-out loss {loss:.3f}")
        if options.pictures is not None:
            options.pictures.mkdir(parents=True, exist_ok=True)
            in_rows(family.pictures(model, x[:32]), options.pictures, name)
        print(trainer.certificate)


if __name__ == "__main__":
    main()
