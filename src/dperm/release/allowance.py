"""What a run's charge covers, and what of it is left: the core that refuses every release that nothing pays for.

What holds, whatever is asked in whatever order:

1. Nothing is covered before a charge, and an allowance is opened by one charge.
2. A release is taken from what is left of an event that names it: its kind, its noise to nine digits, the rate at which its
   records were drawn and how. What several claims pay for together is taken together or not at all.
3. An event covers as many releases as it counts. What is used up is gone; a copy in another process covers nothing.
4. A run that may be continued releases steps, by their numbers: each is one release, a number is reserved in the spend log once,
   for the first run or for one that goes on with it, and pays for the release that the event names at its place. Parts of a
   filter's budget have numbers, too, where they are steps. What has no number is released by the first run alone: linear terms,
   the parts of a split, and parts of a filter's budget beside the steps.
5. Of steps whose draws are made, and charged, together each period begins once, with one noise: for whoever reserved its first
   step, where steps have numbers.
6. Of steps that are charged as hidden, one iterate of each run leaves.
7. A part of a filter's budget covers what it pays for once the filter has taken it. Of parts whose numbers overlap one is open.
8. An allowance that was closed covers nothing any more. What it says then was never released, was not: no claim was paid by it.

The allowance sees neither data nor noise. Who writes charges to disk, and who makes the noise: `dperm.release.channel`.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain

from dperm.privacy.accountants.privacy_filters import Filter, ProfileFilter, filter_of
from dperm.privacy.events import Disjoint, Event, Paid, begun_periods, leaves, paid_steps, steps_of
from dperm.release.draws import Draw

#: Kinds of releases that have a charge of their own each.
_SINGLE = ("gaussian", "pure", "choice")
_SAME = 1e-9  # relative difference within which two noise levels are the same number

#: What a release, or a split into parts, asks to be paid by.
Claim = Paid | Event


class UnpaidReleaseError(RuntimeError):
    """A release that the charged event does not pay for: a bug in a mechanism, caught before anything leaves."""


class Allowance:
    """What one charge, of `event`, still covers."""

    def __init__(self) -> None:
        self.event: Event | None = None
        self.filter: Filter | None = None
        self._process = os.getpid()
        self._left: Counter[Claim] = Counter()  # what is released without a number
        self._granted: Counter[Claim] = Counter()  # what reserved steps pay for
        self._steps: list[tuple[int, Event]] = []  # events whose releases are steps, each with the number of its first
        self._reserved: list[tuple[int, int]] = []  # first numbers, and those after the last
        self._drawn: Draw | None = None
        self._periods: Counter[Claim] = Counter()  # that may begin, of draws that are charged together
        self._in_period = 0  # releases since the last of them began
        self._period: Claim | None = None  # what pays for it
        self._closed = False

    def open(self, event: Event, *, continuable: bool = False, again: bool = False) -> None:
        """The charge was paid, of a run that may be continued if it is `continuable`; `again`: by a run that was interrupted,
        whose releases may have left."""
        self.refuse_second_charge()
        self.event = event
        self.filter = filter_of(event)
        if not isinstance(self.filter, ProfileFilter):  # the places of one are taken one by one, as parts
            self._cover(event, first=0 if continuable or again else None, again=again)

    def refuse_second_charge(self) -> None:
        """UnpaidReleaseError where a charge was made."""
        if self.event is not None:
            raise UnpaidReleaseError("A channel is charged once; open a new one for another run.")

    def cover_part(self, part: Event, first: int | None = None, *, again: bool = False) -> None:
        """Add a part that the filter took, whose steps are numbered from `first` on; `again`: before an interruption."""
        self._cover(part, first, again)

    def _cover(self, event: Event, first: int | None, again: bool) -> None:
        """Add what `event` pays for, which was charged or taken by the filter."""
        if first is not None:
            self._cover_steps(event, first)
        for leaf, count in leaves(event).items():
            paid = leaf.pays_for
            if isinstance(leaf, Disjoint) or (paid is not None and paid.kind == "objective"):
                self._left[leaf] += 0 if again else count
            elif paid is not None:
                if first is None:
                    self._left[paid] += count * leaf.releases
                    self._periods[paid] += count if leaf.releases > 1 else 0
                if paid.kind == "hidden":
                    self._left[paid._replace(kind="last")] += count

    def _cover_steps(self, event: Event, first: int) -> None:
        """Add the steps of `event` that were, or will be, reserved. UnpaidReleaseError where steps of their numbers are open."""
        stop = first + steps_of(event)
        if any(first < begun + steps_of(other) and begun < stop for begun, other in self._steps):
            raise UnpaidReleaseError(f"Steps {first} to {stop} of this charge are open already.")
        self._steps.append((first, event))
        for begun, ended in self._reserved:
            self._pay(event, begun - first, ended - first)

    def _pay(self, event: Event, start: int, stop: int) -> None:
        self._granted += paid_steps(event, start, stop)
        self._periods += begun_periods(event, start, stop)

    def draws(self, draw: Draw) -> None:
        """Records are drawn anew, by this rule, for the releases that follow."""
        self._drawn, self._in_period = draw, 0

    @property
    def drawn(self) -> Draw | None:
        """How records were drawn last."""
        return self._drawn

    def grant(self, first: int, steps: int) -> None:
        """Steps of the run, from its step `first` on, were reserved in the log."""
        self._reserved.append((first, first + steps))
        for begun, event in self._steps:
            self._pay(event, first - begun, first - begun + steps)

    def take(self, *claims: Claim) -> None:
        """Pay for one release that makes these claims, out of what is left. UnpaidReleaseError, with nothing taken, where it is
        not covered."""
        self._refuse_other_process()
        if self._closed:
            raise UnpaidReleaseError("This channel was closed to settle its charge: nothing leaves it any more.")
        paying = [self._covering(claim) for claim in claims]
        for claim, count in Counter(paying).items():
            if count > self._left[claim] + self._granted[claim]:
                raise UnpaidReleaseError(f"{_described(claim)} not paid for {count} times by {self.event}.")
        for claim in paying:
            self._go_on_in_period(claim)
        for claim in paying:
            (self._left if self._left[claim] else self._granted)[claim] -= 1

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process:
            raise UnpaidReleaseError("This channel was opened by another process, which may release what it paid for.")

    def close(self) -> None:
        """Cover nothing any more, for good. UnpaidReleaseError in another process: its copy says nothing of the first."""
        self._refuse_other_process()
        self._closed = True

    def unreleased(self, unreserved: int | None) -> Counter[Event]:
        """The leaves of what was charged that paid for no release so far; of a closed allowance, that never will.

        `unreserved`: the first step that no process has reserved, where steps have numbers: nobody has released those from there
        on, nor this run those that it reserved and did not take. Steps that others reserved count as released. Leaves with
        releases that are drawn or charged together, objectives, splits and hidden steps are left out: they count as released.
        UnpaidReleaseError where nothing was charged, or a budget with parts that are chosen on the way.
        """
        if self.event is None or self.filter is not None:
            raise UnpaidReleaseError("Expected a charge of events, not of a budget: what is left of one is its filter's.")
        left = self._left + self._granted
        if unreserved is not None:
            first = max([unreserved, *(stop for _, stop in self._reserved)])  # what this run took, it knows whatever the log says
            left += paid_steps(self.event, first, steps_of(self.event))
        paid_by = {leaf: leaf.pays_for for leaf in leaves(self.event)}
        found: Counter[Event] = Counter()
        for leaf, paid in paid_by.items():
            if paid is None or paid.kind not in _SINGLE or leaf.releases > 1:
                continue
            if sum(other is not None and _pays(other, paid) for other in paid_by.values()) == 1:  # else another may have paid
                found[leaf] = left[paid]
        return +found

    def _covering(self, claim: Claim) -> Claim:
        """What is left that pays for a claim, with how its records were drawn."""
        if isinstance(claim, Paid) and claim.rate < 1:
            if self._drawn is None or claim.rate != self._drawn.rate:
                drawn = self._drawn and self._drawn.rate
                raise UnpaidReleaseError(f"A release claims the sampling rate {claim.rate:g}, but records were drawn at {drawn}.")
            claim = claim._replace(draw=self._drawn.key)
        held = chain(self._left.items(), self._granted.items())
        found = next((claimed for claimed, count in held if count and _pays(claimed, claim)), None)
        if found is not None:
            return found
        if any(leaf.pays_for is not None and _pays(leaf.pays_for, claim) for _, event in self._steps for leaf in leaves(event)):
            raise UnpaidReleaseError(
                f"{_described(claim)} not paid for by a step that is reserved. A run that may be continued releases what its "
                "event names at the numbers of the steps that it reserved, and no others: call reserve first."
            )
        raise UnpaidReleaseError(f"{_described(claim)} not paid for by {self.event}.")

    def _go_on_in_period(self, claim: Claim) -> None:
        """Of steps that are drawn, and charged, together: a draw that starts anew starts a period that must be paid for."""
        if not isinstance(claim, Paid) or claim.rate >= 1 or self._drawn is None or self._drawn.period == 1:
            return
        if self._in_period % self._drawn.period == 0:
            if self._periods[claim] < 1:
                raise UnpaidReleaseError(
                    f"Records were drawn anew, for {self._drawn.period} steps that are not paid for by {self.event}."
                )
            self._periods[claim] -= 1
            self._period = claim
        elif self._period is None or not _pays(self._period, claim):
            raise UnpaidReleaseError(f"{_described(claim)} not paid for by the period that records were drawn for.")
        self._in_period += 1


def _pays(held: Claim, claim: Claim) -> bool:
    if not isinstance(held, Paid) or not isinstance(claim, Paid):
        return held == claim
    alike = (held.kind, held.rate, held.draw) == (claim.kind, claim.rate, claim.draw)
    return alike and abs(claim.noise - held.noise) <= _SAME * held.noise


def _described(claim: Claim) -> str:
    if isinstance(claim, Disjoint):
        return f"Channels for the parts of {claim} are"
    if not isinstance(claim, Paid):
        return f"An objective perturbation of {claim} is"
    if claim.kind == "last":
        return f"No iterate leaves but the last one, once: one with noise {claim.noise:g} is"
    return f"A {claim.kind} release of noise {claim.noise:g} at sampling rate {claim.rate:g} ({claim.draw or 'all records'}) is"
