"""Whether the releases and draws of a run are those that were charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dperm.audit.noise import Finding
from dperm.audit.recording import Recording
from dperm.privacy import Composed, Event, SelfComposed
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, filter_of
from dperm.privacy.events import Disjoint, Paid, chosen_on_the_way, leaves
from dperm.release.draws import Draw


def charged_at_doors(recording: Recording, event: Event) -> list[tuple[int, Event]]:
    """What is charged for each door of a run: for all records, and for each part."""
    whole = [SelfComposed(leaf, count) for leaf, count in leaves(event).items() if not isinstance(leaf, Disjoint)]
    return [(0, Composed(tuple(whole))), *(door for split in splits(recording, event) for door in split)]


def splits(recording: Recording, event: Event) -> list[list[tuple[int, Event]]]:
    """The doors of each split of a run, in their order, and what is charged for each. Where parts of several unlike splits were
    charged, those that pay for what their doors let through."""
    taken = Composed((event, *(part for door, part in recording.parts if door == 0)))
    charged = {leaf: count for leaf, count in leaves(taken).items() if isinstance(leaf, Disjoint)}

    def from_door(first: int, left: Mapping[Disjoint, int]) -> list[list[tuple[int, Event]]] | None:
        if first > recording.doors:
            return []
        for leaf, count in left.items():
            split: list[tuple[int, Event]] = [*enumerate(leaf.parts, first)]
            if not count or (len(left) > 1 and any(_unpaid_at(recording.at(door), part) for door, part in split)):
                continue
            rest = from_door(first + len(split), {**left, leaf: count - 1})
            if rest is not None:
                return [split, *rest]
        return None

    return from_door(1, charged) or []


def unpaid(recording: Recording, event: Event) -> list[Finding]:
    """Releases that the certificate's event does not hold: of each door what is charged for it."""
    doors = charged_at_doors(recording, event)
    known = {door for door, _ in doors}
    if any(release.door not in known for release in recording.releases):
        return [Finding("unpaid", "a part of the records released what is not in the event that was charged for it")]
    return [finding for door, part in doors for finding in _unpaid_at(recording.at(door), part)]


def _unpaid_at(recording: Recording, event: Event) -> list[Finding]:
    """The same of what one door let through."""
    parts = tuple(part for _, part in recording.parts)
    if not chosen_on_the_way(event):
        return _beyond(recording, event)
    # what a filter was charged for: the parts that it took, which another filter of the same charge must take, too
    held = filter_of(event)
    assert held is not None
    try:
        for part in parts:
            held.charge(part)
    except BudgetExceeded as error:
        return [Finding("unpaid", f"the filter that was charged does not hold what was released: {error}")]
    return _beyond(recording, Composed(parts))


def _beyond(recording: Recording, event: Event) -> list[Finding]:
    """Releases and draws that `event`, whose parts are known, does not pay for."""
    left: Counter[Paid] = Counter()
    for leaf, count in leaves(event).items():
        if leaf.pays_for is not None:
            left[leaf.pays_for] += count * leaf.releases
    owners, unused = recording.draws_of_releases()
    for number, (item, owner) in enumerate(zip(recording.releases, owners, strict=True)):
        kind, noise = item.kind, item.noise if item.kind in ("pure", "threshold", "choice") else item.noise / item.sensitivity
        kinds = (kind, "hidden") if kind == "gaussian" else (kind,)  # of hidden steps the last is released like any other
        alike = [key for key, count in left.items() if count and key.kind in kinds and abs(noise - key.noise) <= 1e-9 * key.noise]
        drawn = None if owner is None else recording.drawn[owner].draw
        paid = next((key for key in alike if _drawn_as(key, drawn, item.sampling_rate)), None)
        if paid is None and alike:
            text = f"release {number + 1} was charged as sampled ({alike[0].draw}, at {alike[0].rate:g})"
            how = (
                "no draw was made for it"
                if drawn is None
                else f"its records were drawn otherwise ({drawn.key}, at {drawn.rate:g})"
            )
            return [Finding("draws", f"{text}, but {how}")]
        if paid is None:
            text = f"a release with noise {noise:.6g} times its sensitivity is not in the event that was charged"
            return [Finding("unpaid", text)]
        left[paid] -= 1
    return _unused_draws(recording, unused)


def _drawn_as(paid: Paid, draw: Draw | None, rate: float) -> bool:
    """Whether a release that claims a rate, of the records of a draw (None: of all), is what was paid for."""
    if paid.rate >= 1 or rate >= 1 or draw is None:
        return paid.rate >= 1 and rate >= 1
    return draw.key == paid.draw and abs(draw.rate - paid.rate) <= 1e-9 * paid.rate


def _unused_draws(recording: Recording, unused: Sequence[int]) -> list[Finding]:
    """Calls for draws side by side, which made more of them than there are releases: a release may have seen several. One call
    alone may have been left early."""
    calls: dict[tuple[int, float], set[int]] = {}
    sampled = {(release.door, release.sampling_rate) for release in recording.releases if release.sampling_rate < 1}
    for item in map(recording.drawn.__getitem__, unused):
        calls.setdefault((item.door, item.draw.rate), set()).add(item.call)
    for (door, rate), several in calls.items():
        if len(several) > 1 and (door, rate) in sampled:
            drawn = sum((item.door, item.draw.rate) == (door, rate) for item in recording.drawn)
            made = sum((item.door, item.sampling_rate) == (door, rate) for item in recording.releases)
            return [
                Finding(
                    "draws", f"records were drawn {drawn} times at {rate:g} for {made} releases: one draw is charged for each"
                )
            ]
    return []
