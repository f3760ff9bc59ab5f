"""Items of a data set: read and collated record by record, each read from a random state of its own, once for each view."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from torch import Tensor
from torch.utils.data import Dataset

from dperm.torch.data.collation import grouped, joined, refuse_other_than_pairs
from dperm.torch.data.labelled_items import pair_of
from dperm.torch.tensors.global_randomness import seed_all
from dperm.torch.tensors.nested import map_tensors

#: (number of an item, the seed that it draws from), for each of its views
Reads = tuple[tuple[int, int], ...]


class Rows(Dataset[Any]):
    """Tensors as a data set, whose items are single rows of them."""

    def __init__(self, tensors: Any, size: int) -> None:
        self._tensors, self._size = tensors, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return map_tensors(lambda tensor: tensor[index].clone(), self._tensors)  # so that nobody writes into the records


class Transformed(Dataset[Any]):
    """A data set with `transform(inputs) -> inputs` of each item; what is for the loss alone, and how an item is arranged, stays.
    Items without targets are transformed as a whole."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self._dataset, self._transform = dataset, transform

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        item = map_tensors(Tensor.clone, self._dataset[index])  # which may be a view of the records
        pair = pair_of(item)
        if pair is item and type(item) is not tuple:  # a picture, say, that is no tensor yet
            return self._transform(item)
        inputs, targets = pair
        changed = self._transform(inputs)
        if targets is inputs:
            return changed
        if isinstance(item, Mapping):
            (label,) = cast(Mapping[str, Any], item).keys() - inputs.keys()
            return {**changed, label: targets}
        return (*changed, targets) if len(item) > 2 else (changed, targets)


class Chunks:
    """A batch sampler of whatever `chunks` are at the time."""

    def __init__(self) -> None:
        self.chunks: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.chunks


class Items(Dataset[Any]):
    """Batches of a data set's items, each fetched and collated by itself, from a random state of its own.

    Once a run is `charged` an error would be an output, and so would a warning: a record that cannot be read or collated is left
    out of its batch, and contributes zero.
    """

    def __init__(self, dataset: Any, collate: Any, charged: bool, views: int) -> None:
        self._dataset, self._collate, self._charged, self._views = dataset, collate, charged, views

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, seeded: list[Any]) -> Any:
        """The batch of these `Reads`, or of lists of them that are one record each."""
        if not self._charged:
            return self._made(seeded)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._made(seeded)
            except Exception:
                return joined([self._made_or_none(one) for one in seeded])

    def _made(self, seeded: list[Any]) -> Any:
        if seeded and isinstance(seeded[0], list):
            batch = self._collate.of_several((self._fetched(several) for several in seeded), self._views)
        elif self._views > 1:
            batch = self._collate.of_views(self._fetched([reads]) for reads in seeded)
        else:
            batch = self._collate(self._fetched(seeded))
        for places, *group in grouped(batch, len(seeded)) if self._charged else ():
            refuse_other_than_pairs(group, len(places))
        return batch

    def _made_or_none(self, one: Any) -> Any:
        try:
            return self._made([one])
        except Exception:
            return None

    def _fetched(self, seeded: Iterable[Reads]) -> Iterator[Any]:
        for reads in seeded:
            for number, seed in reads:
                seed_all(seed)
                yield self._dataset[number]


def as_it_is(batch: Any) -> Any:
    """What `Items` made is a batch already."""
    return batch
