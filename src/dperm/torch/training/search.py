"""Search over training runs of networks, charged as a whole: the best of a random number of tries."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from dperm import _validate as check
from dperm.privacy import BestOfTries, Certificate
from dperm.privacy.adaptive.private_selection import Law, budget_of_a_try, share_within
from dperm.release import best_of_tries
from dperm.release.selection import certificate_of_search
from dperm.torch.ranks import Ranks
from dperm.torch.ranks.tensor_noise import open_channel
from dperm.torch.training.trainer import PrivateTrainer

_TRIES_EACH = 2.0


class Candidate(Protocol):
    """Makes a trainer of a new model, with this budget and a stated `public_size`."""

    def __call__(self, *, epsilon: float, delta: float) -> PrivateTrainer: ...


@dataclass(frozen=True)
class SearchedRun:
    """The best try: its trainer and score, the `place` of its candidate, and the certificate of the search and the model, which
    is the trainer's, too."""

    trainer: PrivateTrainer
    score: float
    place: int
    certificate: Certificate

    @property
    def model(self) -> nn.Module:
        """What was trained."""
        return self.trainer.model


def search_runs(
    candidates: Sequence[Candidate],
    dataset: Any,
    score: Callable[[nn.Module], float],
    *,
    epsilon: float,
    delta: float,
    tries: float | None = None,
    law: Law = "geometric",
    label: str = "",
    random_state: Any = None,
) -> SearchedRun:
    """Train candidates drawn evenly, a random number of times that stays secret, and keep the one whose model scores most.

    The linear models' counterpart is `DPSearch`; the bound is that of docs/search.md. `score` sees public held-out records
    alone, the more the better. `tries` is the mean of the number (None: twice the candidates). One charge is written before the
    first try. ValueError before it for candidates whose cost is not known beforehand: with a private number of records,
    checkpoints, or a seed of their own.
    """
    check.positive("epsilon", epsilon)
    check.fraction("delta", delta)
    if not candidates:
        raise ValueError("Expected at least one candidate.")
    mean = check.positive("tries", _TRIES_EACH * len(candidates) if tries is None else tries)
    first = budget_of_a_try(epsilon, delta, mean, law)
    small = first[1]

    if Ranks.here().size > 1:
        raise ValueError("Expected a search in one process: its random number of tries is not told to other ranks.")

    def planned(each: float) -> tuple[float, BestOfTries, list[Certificate]]:
        parts = [_fresh(candidate, each, small).planned() for candidate in candidates]
        return each, BestOfTries(tuple(part.event for part in parts), mean, law), parts

    with warnings.catch_warnings(), _own_draws():
        warnings.simplefilter("ignore")  # about the number of records, of each try
        each, event, parts = share_within(epsilon, delta, first[0], planned, lambda found: found[1])

    # before the first try: its date tells of none
    searched = certificate_of_search(
        event, parts, law, len(parts), delta=delta, epsilon=epsilon, held_out_private=False,
        facts={"settings": len(parts), "epsilon_of_a_try": each, "delta_of_a_try": small},
        provenance=open_channel(random_state, torch.device("cpu")).provenance,
    )  # fmt: skip

    def run(place: int) -> tuple[float, tuple[int, PrivateTrainer]]:
        with _own_draws():
            trainer = _fresh(candidates[place], each, small)
            trainer.settings = replace(trainer.settings, random_state=random_state)
            trainer.fit(dataset, progress=False)
            if trainer.certificate is None or trainer.certificate.event != event.tries[place]:
                raise ValueError("A try spent something else than what it was charged for.")
            return float(score(trainer.model)), (place, trainer)

    runs = [lambda place=place: run(place) for place in range(len(candidates))]
    best, (place, trainer) = best_of_tries(event, runs, label=label, random_state=random_state)
    trainer.certify_as(searched)
    return SearchedRun(trainer, best, place, searched)


def _fresh(candidate: Candidate, epsilon: float, delta: float) -> PrivateTrainer:
    trainer = candidate(epsilon=epsilon, delta=delta)
    if not isinstance(trainer, PrivateTrainer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected candidates that make a PrivateTrainer, got {trainer!r}.")
    if trainer.certificate is not None:
        raise ValueError("Expected a new trainer of a new model from each call of a candidate: this one ran already.")
    if trainer.settings.checkpoint is not None or trainer.settings.random_state is not None:
        raise ValueError("Expected candidates without checkpoints, which would tell of each try, and without random_state.")
    if trainer.settings.spent:
        raise ValueError("Expected candidates without spent: a search has a budget of its own.")
    return trainer


@contextlib.contextmanager
def _own_draws() -> Iterator[None]:
    """Within it torch's global generators are seeded afresh; behind it nobody can tell from their state how much was drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
        yield
