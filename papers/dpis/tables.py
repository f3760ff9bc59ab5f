"""Which cells make which table, and the numbers that the paper prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from papers.dpis.cells import Cell

__all__ = [
    "DATASETS",
    "EPSILONS",
    "PAPER",
    "PAPER_ABLATIONS",
    "TABLES",
    "comparison",
    "equals",
    "methods",
    "own_questions",
    "settings",
    "tuning",
    "variants",
]

DATASETS = ("mnist", "fashion_mnist", "imdb", "cifar10")
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0)

#: Table 3: test accuracy at ε = 0.5, 1, 2, 3, 4.
PAPER: dict[tuple[str, str], tuple[float, ...]] = {
    ("mnist", "DPIS"): (96.8, 97.7, 98.6, 98.8, 98.9),
    ("mnist", "HF"): (96.1, 97.2, 98.3, 98.4, 98.5),
    ("mnist", "TS"): (96.0, 96.8, 97.7, 98.1, 98.3),
    ("mnist", "Decay"): (96.2, 97.0, 97.8, 98.2, 98.3),
    ("mnist", "DP-SGD"): (93.1, 94.9, 96.1, 96.8, 97.2),
    ("fashion_mnist", "DPIS"): (84.6, 86.6, 88.3, 88.8, 89.4),
    ("fashion_mnist", "HF"): (83.9, 86.0, 87.8, 88.3, 88.7),
    ("fashion_mnist", "TS"): (81.0, 83.0, 85.0, 86.3, 86.8),
    ("fashion_mnist", "Decay"): (80.8, 83.1, 85.1, 86.4, 86.8),
    ("fashion_mnist", "DP-SGD"): (78.4, 80.8, 82.3, 84.1, 84.5),
    ("cifar10", "DPIS"): (55.1, 62.2, 67.9, 69.7, 70.6),
    ("cifar10", "HF"): (54.3, 61.1, 67.4, 69.2, 70.2),
    ("cifar10", "TS"): (44.4, 51.0, 57.2, 60.7, 63.0),
    ("cifar10", "Decay"): (44.1, 50.7, 56.6, 60.7, 63.1),
    ("cifar10", "DP-SGD"): (43.1, 48.3, 54.7, 58.9, 60.4),
    ("imdb", "DPIS"): (59.1, 62.1, 65.9, 68.3, 70.2),
    ("imdb", "TS"): (57.5, 60.3, 62.8, 65.2, 66.5),
    ("imdb", "Decay"): (56.8, 60.4, 63.6, 66.3, 67.6),
    ("imdb", "DP-SGD"): (56.4, 60.3, 63.5, 66.4, 67.4),
}

#: Tables 4 to 8, at ε = 1 where they do not say otherwise: (data set, variant) → accuracy.
PAPER_ABLATIONS: dict[str, dict[tuple[str, str], float]] = {
    "4": {
        ("mnist", "fixed C"): 97.7, ("mnist", "adaptive C"): 97.6,
        ("fashion_mnist", "fixed C"): 86.6, ("fashion_mnist", "adaptive C"): 86.5,
        ("cifar10", "fixed C"): 62.2, ("cifar10", "adaptive C"): 62.4,
        ("imdb", "fixed C"): 61.7, ("imdb", "adaptive C"): 62.2,
    },
    "5": {
        ("mnist", "a_E = 0"): 97.6, ("mnist", "a_E = 0.6"): 97.6, ("mnist", "a_E = 0.8"): 97.7, ("mnist", "a_E = 1"): 97.6,
        ("fashion_mnist", "a_E = 0"): 86.6, ("fashion_mnist", "a_E = 0.6"): 86.5, ("fashion_mnist", "a_E = 0.8"): 86.7,
        ("fashion_mnist", "a_E = 1"): 86.8,
        ("cifar10", "a_E = 0"): 62.0, ("cifar10", "a_E = 0.6"): 62.1, ("cifar10", "a_E = 0.8"): 62.4,
        ("cifar10", "a_E = 1"): 61.9,
        ("imdb", "a_E = 0"): 62.1, ("imdb", "a_E = 0.6"): 61.8, ("imdb", "a_E = 0.8"): 62.1, ("imdb", "a_E = 1"): 62.1,
    },
    "6": {
        ("mnist", "k = 3"): 97.7, ("mnist", "k = 4"): 97.7, ("mnist", "k = 5"): 97.7, ("mnist", "k = 6"): 97.7,
        ("fashion_mnist", "k = 3"): 86.7, ("fashion_mnist", "k = 4"): 86.7, ("fashion_mnist", "k = 5"): 86.8,
        ("fashion_mnist", "k = 6"): 86.8,
        ("cifar10", "k = 3"): 62.3, ("cifar10", "k = 4"): 62.2, ("cifar10", "k = 5"): 62.4, ("cifar10", "k = 6"): 62.4,
        ("imdb", "k = 3"): 62.1, ("imdb", "k = 4"): 62.2, ("imdb", "k = 5"): 62.3, ("imdb", "k = 6"): 62.3,
    },
    "7": {
        ("mnist", "C* = 3 C1"): 97.5, ("mnist", "C* = 4 C1"): 97.6, ("mnist", "C* = 5 C1"): 97.4, ("mnist", "C* = 6 C1"): 97.3,
        ("fashion_mnist", "C* = 3 C1"): 86.4, ("fashion_mnist", "C* = 4 C1"): 86.5, ("fashion_mnist", "C* = 5 C1"): 86.4,
        ("fashion_mnist", "C* = 6 C1"): 86.4,
        ("cifar10", "C* = 3 C1"): 61.9, ("cifar10", "C* = 4 C1"): 62.4, ("cifar10", "C* = 5 C1"): 62.1,
        ("cifar10", "C* = 6 C1"): 62.0,
        ("imdb", "C* = 3 C1"): 62.0, ("imdb", "C* = 4 C1"): 62.2, ("imdb", "C* = 5 C1"): 62.1, ("imdb", "C* = 6 C1"): 62.0,
    },
    "8": {
        ("mnist", "best λ"): 97.6, ("mnist", "best λ ± 0.1"): 97.4, ("mnist", "best λ ± 0.2"): 97.3,
        ("fashion_mnist", "best λ"): 86.5, ("fashion_mnist", "best λ ± 0.1"): 86.4, ("fashion_mnist", "best λ ± 0.2"): 86.3,
        ("cifar10", "best λ"): 62.4, ("cifar10", "best λ ± 0.1"): 62.0, ("cifar10", "best λ ± 0.2"): 61.8,
        ("imdb", "best λ"): 62.2, ("imdb", "best λ ± 0.1"): 61.7, ("imdb", "best λ ± 0.2"): 61.1,
    },
}  # fmt: skip


def settings(dataset: str, model: str, epsilon: float) -> Cell:
    """The settings of Tramèr & Boneh 2021, which the paper follows; learning rates and epochs are lower at small ε."""
    if dataset == "imdb":
        return Cell(dataset, epsilon, model, batch=512, epochs=10, learning_rate=0.01, optimizer="adam", clipping_norm=1.0)
    if dataset == "mnist":
        if model == "scattering":
            return Cell(dataset, epsilon, model, batch=1024, epochs=25, learning_rate=1.0)
        return Cell(dataset, epsilon, model, learning_rate=0.5 if epsilon <= 1 else 1.0)
    if dataset == "cifar10":
        if model == "scattering":
            return Cell(dataset, epsilon, model, batch=8192, epochs=40, learning_rate=4.0, channel_noise=8.0)
        return Cell(dataset, epsilon, model, batch=1024, epochs=30, learning_rate=1.0)
    rate = 4.0 if epsilon >= 1 else 2.0
    epochs = 20 if model != "scattering" else 25 if epsilon >= 1 else 12
    return Cell(dataset, epsilon, model, batch=2048, epochs=epochs, learning_rate=rate)


def tuning() -> dict[str, Cell]:
    """What was tried for Fashion-MNIST at ε = 0.5 with scattering features, where the learning rate of larger ε fails."""
    base = settings("fashion_mnist", "scattering", 0.5)
    tried = ((4.0, 25), (2.0, 25), (2.0, 12), (1.0, 25), (1.0, 40))
    return {f"lr {rate:g}, {epochs} epochs": replace(base, learning_rate=rate, epochs=epochs) for rate, epochs in tried}


def methods(dataset: str, epsilon: float) -> dict[str, Cell]:
    """Table 3's rows. The paper's DPIS is with scattering features on images, and adaptive clipping on reviews, where Decay
    has ReLU as DPIS and DP-SGD have."""
    tanh = settings(dataset, "tanh", epsilon)
    found = {
        "TS": tanh,
        "Decay": replace(tanh, decay=0.01),
        "DP-SGD": settings(dataset, "relu", epsilon),
    }
    if dataset == "imdb":
        relu = settings(dataset, "relu", epsilon)
        own = replace(relu, sampler="importance", k=3.0, norm_noise=0.02, adaptive=True)
        return {"DPIS": own, **found, "Decay": replace(relu, decay=0.01)}
    features = settings(dataset, "scattering", epsilon)
    share = 1.0 if dataset == "fashion_mnist" else 0.8
    own = replace(features, sampler="importance", k=5.0, norm_noise=0.02, worst_case_share=share)
    return {"DPIS": own, "HF": features, **found}


def table3() -> Iterator[Cell]:
    for dataset in DATASETS:
        for epsilon in EPSILONS:
            yield from methods(dataset, epsilon).values()


def comparison(dataset: str, epsilon: float, seed: int) -> dict[str, Cell]:
    """The same network, batch and steps: what importance sampling itself is worth."""
    same = replace(settings(dataset, "tanh", epsilon), seed=seed)
    return {
        "DP-SGD (RDP)": same,
        "DPIS (RDP)": replace(same, sampler="importance"),
        "DP-SGD (PLD)": replace(same, accounting="pld"),
        "DPIS (profiles)": replace(same, sampler="importance", accounting="pld"),
    }


def comparisons() -> Iterator[Cell]:
    """ε = 1 and 3 first: what is cut short is the rest."""
    for epsilon in (1.0, 3.0, 0.5, 2.0, 4.0):
        for dataset in ("mnist", "fashion_mnist"):
            for seed in range(3):
                yield from comparison(dataset, epsilon, seed).values()


def equals(dataset: str) -> dict[str, Cell]:
    """Ways to one noise at ε = 1: DP-SGD with batches of b/r, r as DPIS has it on average, and DPIS with fewer evaluations."""
    base = replace(settings(dataset, "tanh", 1.0), accounting="pld")
    batch, epochs, r = {"mnist": (1600.0, 62, 0.32), "fashion_mnist": (4000.0, 39, 0.51)}[dataset]
    own = replace(base, sampler="importance")
    return {
        f"DP-SGD, batch b = {base.batch:g}": base,
        f"DP-SGD, batch b/r = {batch:g} (r = {r:g}), as many steps": replace(base, batch=batch, epochs=epochs),
        "DPIS": own,
        "DPIS, k = 1, norms refreshed every second epoch": replace(own, k=1.0, pass_every=2),
        "DP-SGD, batch b, with the noise that DPIS had (at a larger ε)": replace(base, borrowed=True),
    }


def variants(table: str, dataset: str) -> dict[str, Cell]:
    """The columns of tables 4 to 8 at ε = 1, on the networks of table 3's DPIS."""
    own = methods(dataset, 1.0)["DPIS"]
    adaptive = replace(own, adaptive=True)
    if table == "4":
        return {"fixed C": replace(own, adaptive=False), "adaptive C": adaptive}
    if table == "5":
        return {f"a_E = {share:g}": replace(own, worst_case_share=share) for share in (0.0, 0.6, 0.8, 1.0)}
    if table == "6":
        return {f"k = {k:g}": replace(own, k=k) for k in (3.0, 4.0, 5.0, 6.0)}
    if table == "7":
        return {f"C* = {ceiling:g} C1": replace(adaptive, ceiling=ceiling) for ceiling in (3.0, 4.0, 5.0, 6.0)}
    return {f"λ = {scale:g}": replace(adaptive, scale=scale) for scale in (0.8, 0.9, 1.0, 1.1, 1.2)}


def ablations() -> Iterator[Cell]:
    for table in PAPER_ABLATIONS:
        for dataset in DATASETS:
            yield from variants(table, dataset).values()


def own_questions() -> dict[str, Cell]:
    """What the paper does not ask: on MNIST at ε = 1, with the network of DP-SGD-TS."""
    base = replace(settings("mnist", "tanh", 1.0), sampler="importance")
    poisson = replace(base, sampler="poisson")
    return {
        "DPIS (RDP)": base,
        "DPIS (profiles)": replace(base, accounting="pld"),
        "DP-SGD (RDP)": poisson,
        "DP-SGD (PLD)": replace(poisson, accounting="pld"),
        "DP-SGD (RDP), 2.2 times the batch, as many steps: equal gradient evaluations": replace(poisson, batch=1126, epochs=44),
        "DP-SGD (RDP), batch b/r, r = 0.32 (the mean of DPIS), as many steps": replace(poisson, batch=1600, epochs=62),
        "normalised gradients (RDP)": replace(poisson, bounding="normalise", learning_rate=0.05),
        "DPIS (RDP), k = 1": replace(base, k=1.0),
        "DPIS (RDP), k = 5": replace(base, k=5.0),
        "DPIS (RDP), noisy K (0.02 N)": replace(base, norm_noise=0.02),
        "DPIS (RDP), norms refreshed every fourth epoch": replace(base, pass_every=4),
        "DPIS (RDP), a_E = 0": replace(base, worst_case_share=0.0),
        "DPIS (RDP), a_E = 1": replace(base, worst_case_share=1.0),
    }


TABLES = {
    "comparison": lambda: list(comparisons()),
    "3": lambda: list(table3()),
    "ablations": lambda: list(dict.fromkeys(ablations())),
    "equal": lambda: [
        replace(cell, seed=seed)
        for seed in range(3)
        for dataset in ("mnist", "fashion_mnist")
        for cell in equals(dataset).values()
    ],
    "tuning": lambda: list(tuning().values()),
    "own": lambda: [replace(cell, seed=seed) for seed in range(3) for cell in own_questions().values()],
}
