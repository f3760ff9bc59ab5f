"""What a DataLoader says of records, for a run that draws them itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate


@dataclass(frozen=True)
class LoaderParts:
    """`dataset` is for `PrivateTrainer.fit`; `settings` are keywords of `PrivateTrainer`: collate_fn, num_workers and
    expected_batch_size, as far as the loader has them."""

    dataset: Any
    settings: dict[str, Any]


def from_loader(loader: DataLoader[Any]) -> LoaderParts:
    """A DataLoader's data set, collation, workers and batch size. What else it has and a private run has no counterpart of is
    named in a warning: batches are drawn at random, each record by itself, in processes that the run seeds.

    Raises TypeError for what is no DataLoader, and for one of a stream, whose records cannot be drawn by number; ValueError for
    one whose data set makes batches itself.
    """
    if not isinstance(loader, DataLoader):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a torch DataLoader, got {type(loader).__name__}.")
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError("Expected a loader of a data set with items by index: records of a stream cannot be drawn by number.")
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is None:
        raise ValueError("Expected a loader of single records, got one with batch_size=None, whose data set makes batches.")
    settings: dict[str, Any] = {"num_workers": loader.num_workers}
    if loader.collate_fn is not default_collate:
        settings["collate_fn"] = loader.collate_fn
    if loader.batch_size is not None:
        settings["expected_batch_size"] = loader.batch_size
    if dropped := _dropped(loader, batch_sampler):
        warnings.warn(
            f"Left out of the loader, for a private run draws records itself: {', '.join(dropped)}.", UserWarning, stacklevel=2
        )
    return LoaderParts(loader.dataset, settings)


def _dropped(loader: DataLoader[Any], batch_sampler: Any) -> list[str]:
    """What changes which records are seen, or what is drawn for them, in words."""
    dropped: list[str] = []
    if type(batch_sampler) is not BatchSampler:
        dropped.append(f"batch_sampler={type(batch_sampler).__name__}")
    elif type(loader.sampler) not in (RandomSampler, SequentialSampler):
        dropped.append(f"sampler={type(loader.sampler).__name__}")
    elif getattr(loader.sampler, "replacement", False):
        dropped.append("draws with replacement")
    if loader.drop_last:
        dropped.append("drop_last")
    if loader.worker_init_fn is not None:
        dropped.append("worker_init_fn")
    if loader.generator is not None:
        dropped.append("generator")
    return dropped
