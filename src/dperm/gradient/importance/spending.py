"""What a run of DPIS is charged, and what noise that leaves to each of its epochs: by Rényi filter or by privacy profiles."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from scipy.special import ndtri

from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.calibration import calibrate_below
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, Filter, ProfileFilter, RdpFilter
from dperm.privacy.events import Composed, Event, FilteredRdp, Gaussian, PoissonSampled, PrivacyProfile, SelfComposed, leaves

_WORST_CASE_SHARE = 0.8
_SIZE_SHARE = 0.01  # of the budget, for N, where its noise is not stated
_NORM_SHARE = 0.05  # of the budget, at most, for all K and K*, where their noise is not stated
_RATES = 1.02  # neighbouring sampling rates ÷ each other, by profiles
_NORM_NOISE = 0.005  # noise of K in units of N·C, if that keeps within the share


def epoch_event(rate: float, noise_multiplier: float, steps: int) -> SelfComposed:
    return SelfComposed(PoissonSampled(rate, Gaussian(noise_multiplier)), steps)


def sum_noise_by_rule(releases: int, mu: float, public_size: int | None) -> float:
    """σ_K where it is not stated: all K take at most 5 % of a budget that is worth one Gaussian of noise 1/`mu`."""
    return max(math.sqrt(releases / _NORM_SHARE) / mu, _NORM_NOISE * (public_size or 0))


@dataclass(frozen=True)
class Schedule:
    """What of a plan its cost depends on, besides its budget: epochs, rates, what is released beside gradients, and with which
    noise, where that is stated."""

    epochs: int
    expected_batch_size: float
    public_size: int | None
    adaptive: bool
    norm_noise: float | None
    size_noise: float | None
    worst_case_share: float | None

    @property
    def steps_per_epoch(self) -> int:
        return 0 if self.public_size is None else max(1, round(self.public_size / self.expected_batch_size))

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def least_rate(self) -> float:
        """b/N: the sampling rate of a step where K = N·C."""
        assert self.public_size is not None
        return self.expected_batch_size / self.public_size

    def sums(self, epoch: int) -> int:
        """How many K and K* are released from the start of `epoch` (from 0) on."""
        return self.epochs - epoch + (self.epochs - max(epoch, 1) if self.adaptive else 0)


class Spending(ABC):
    """How a plan's noise is held to its budget."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    @abstractmethod
    def check(self) -> None:
        """ValueError where the budget cannot pay for N and K."""

    @property
    @abstractmethod
    def sum_noise(self) -> float:
        """σ_K."""

    @property
    @abstractmethod
    def size_noise(self) -> float:
        """σ_N."""

    @abstractmethod
    def event(self, start: int, stop: int) -> Event:
        """What the steps from `start` to `stop` are charged."""

    @abstractmethod
    def spent(self, held: Filter) -> Event | None:
        """What a run is known to have spent."""

    @abstractmethod
    def noise_multiplier(self, held: Filter, epoch: int, steps: int, rate: float) -> float:
        """σ_e: noise of each of the `steps` left of `epoch`, drawn at `rate`. BudgetExceeded where nothing is left for them."""

    def norm_noise(self, held: Filter) -> float:
        """σ_K, as charged."""
        return self.sum_noise

    def paid_at_once(self, left: int) -> int:
        """The steps of an epoch that are paid for when it begins with `left` of them to do."""
        return left

    def rate(self, wanted: float) -> float:
        """The sampling rate to use for one that the released K asks for: no larger, but for rounding."""
        return wanted

    @abstractmethod
    def describe(self) -> str: ...

    #: where the published algorithm is not followed in this
    deviation: str
    #: what holds the budget, for `paper`
    source: str


class ByRenyi(Spending):
    """Divergences at the filter's order are added up. The noise of the mean gradient, σ_G = σ_e·r with r = K̃/(N·C) =
    b/(N·rate), is the same in all epochs to come: those are taken to have r = 1 in the first part of the run, and this epoch's
    r after it (section 4.2 of the paper)."""

    deviation = "noise is held by a filter at an order fixed beforehand: the best order afterwards is no bound"
    source = "Feldman & Zrnic 2021 (Rényi filter)"

    def __init__(self, schedule: Schedule, budget: FilteredRdp) -> None:
        super().__init__(schedule)
        self.budget = budget
        self._filter = RdpFilter(budget)
        self._pessimistic = _WORST_CASE_SHARE if schedule.worst_case_share is None else schedule.worst_case_share

    def check(self) -> None:
        spent = self.statistics_cost(0) + (0.0 if self.schedule.public_size else self._filter.cost(Gaussian(self.size_noise)))
        if spent >= 0.9 * self.budget.rdp_budget:
            raise ValueError(
                f"The budget cannot pay for N and K: they would take {spent:.3g} of {self.budget.rdp_budget:.3g} at order "
                f"{self.budget.order:g}. Raise norm_noise and size_noise, or lower the number of epochs."
            )

    @property
    def _mu(self) -> float:
        """1 ÷ the noise of the Gaussian that costs the budget."""
        return math.sqrt(2 * self.budget.rdp_budget / self.budget.order)

    @property
    def sum_noise(self) -> float:
        return self.schedule.norm_noise or sum_noise_by_rule(self.schedule.sums(0), self._mu, self.schedule.public_size)

    @property
    def size_noise(self) -> float:
        return self.schedule.size_noise or math.sqrt(1 / _SIZE_SHARE) / self._mu

    def statistics_cost(self, epoch: int) -> float:
        """Rényi cost of all K and K* from the start of `epoch` on."""
        return self.schedule.sums(epoch) * self._filter.cost(Gaussian(self.sum_noise))

    def event(self, start: int, stop: int) -> Event:
        """The steps' share of the budget: what a run left of it depends on releases, and would be no budget to state."""
        steps = self.schedule.steps
        if (start, stop) == (0, steps):
            return self.budget
        if stop <= start:
            return Composed(())
        return replace(self.budget, rdp_budget=self.budget.rdp_budget * (stop - start) / steps)

    def spent(self, held: Filter) -> Event | None:
        # what was spent so far depends on what was released: a filter vouches for its budget and for nothing less
        return held.charged

    def noise_multiplier(self, held: Filter, epoch: int, steps: int, rate: float) -> float:
        assert isinstance(held, RdpFilter)
        schedule = self.schedule
        later = schedule.epochs - epoch - 1
        ratio = schedule.least_rate / rate
        pessimistic = epoch < self._pessimistic * schedule.epochs
        later_rate, later_ratio = (schedule.least_rate, 1.0) if pessimistic else (rate, ratio)
        # what is still to be released at this epoch's end and after it
        target = (held.left - self.statistics_cost(epoch + 1)) * (1 - 1e-9)
        if target <= 0:
            raise BudgetExceeded("Nothing is left of the budget for gradients: interrupted runs spent it.")

        def cost(log_noise: float) -> float:
            noise = math.exp(log_noise)
            now = self._filter.cost(epoch_event(rate, noise / ratio, steps))
            if not later:
                return now
            return now + later * self._filter.cost(epoch_event(later_rate, noise / later_ratio, schedule.steps_per_epoch))

        def beyond(log_noise: float) -> float:
            return math.log(max(cost(log_noise), 1e-300) / target)

        root = root_finding.root(beyond, math.log(1e-3 * ratio), math.log(1e9), xtol=1e-10)
        while cost(root) > target:
            root += 1e-9
        return math.exp(root) / ratio

    def describe(self) -> str:
        return f"within {self.budget.rdp_budget:.6g} at Rényi order {self.budget.order:g}; a_E = {self._pessimistic:g}"


class ByProfile(Spending):
    """Each epoch gets the least noise whose privacy profile stays below the one that was charged for it. What epochs cost does
    not depend on what was released, so that nothing has to be planned ahead."""

    deviation = "each epoch is held to a privacy profile fixed beforehand: ε of what happened to be released is no bound"
    source = "Zhu, Dong, Wang 2022 (composition of dominating pairs)"

    def __init__(self, schedule: Schedule, profile: PrivacyProfile) -> None:
        super().__init__(schedule)
        self.profile = profile

    def check(self) -> None:
        schedule = self.schedule
        if schedule.public_size is None or schedule.norm_noise is None:
            raise ValueError("Expected public_size and norm_noise beside a privacy profile: what is charged depends on them.")
        if schedule.size_noise is not None or schedule.worst_case_share is not None:
            raise ValueError("Expected no size_noise and no worst_case_share beside a privacy profile: a Rényi filter has them.")

    @property
    def sum_noise(self) -> float:
        assert self.schedule.norm_noise is not None
        return self.schedule.norm_noise

    @property
    def size_noise(self) -> float:
        raise ValueError("Expected a Rényi filter's budget where N is released: a profile needs public_size.")

    def event(self, start: int, stop: int) -> Event:
        if stop <= start:
            return Composed(())
        per_epoch = self.schedule.steps_per_epoch
        first, last = start // per_epoch, -(-stop // per_epoch)  # an epoch that is begun is charged as a whole
        sums = SelfComposed(Gaussian(self.sum_noise), self.schedule.sums(first) - self.schedule.sums(last))
        return Composed((sums, SelfComposed(self.profile, last - first)))

    def spent(self, held: Filter) -> Event | None:
        assert isinstance(held, ProfileFilter)
        taken = [(leaf, count - held.left(leaf)) for leaf, count in leaves(held.charged).items()]
        return Composed(tuple(SelfComposed(leaf, count) for leaf, count in taken if count)) if any(n for _, n in taken) else None

    def norm_noise(self, held: Filter) -> float:
        # computed elsewhere, the plan's may differ from the one that was charged by its rounding
        return next(leaf.noise_multiplier for leaf in leaves(held.charged) if isinstance(leaf, Gaussian))

    def noise_multiplier(self, held: Filter, epoch: int, steps: int, rate: float) -> float:
        assert isinstance(held, ProfileFilter)
        # the one that was charged: computed elsewhere, it may differ from the plan's by its rounding
        profiles = [leaf for leaf in leaves(held.charged) if isinstance(leaf, PrivacyProfile) and held.left(leaf) > 0]
        if not profiles:
            raise BudgetExceeded("No epoch that was charged is left: copies of the run took their places, or the log lost lines.")
        return _least_noise(profiles[0], steps, rate)

    def paid_at_once(self, left: int) -> int:
        return self.schedule.steps_per_epoch  # a place holds a whole epoch: copies of the run may have other steps of it to do

    def rate(self, wanted: float) -> float:
        # a grid: epochs whose rates are nearly the same share the search for their noise
        least = self.schedule.least_rate
        return least * _RATES ** math.floor(math.log(wanted / least) / math.log(_RATES) + 1e-9)

    def describe(self) -> str:
        return f"each epoch within {self.profile!r}"


@functools.lru_cache(maxsize=1 << 12)
def _least_noise(profile: PrivacyProfile, steps: int, rate: float) -> float:
    """The noise multiplier at which an epoch just stays below a profile."""

    # a Gaussian whose total variation is the profile's, as the central limit of sampled Gaussians has it
    mu = min(max(-2 * float(ndtri((1 - profile.deltas[0]) / 2)), 1e-9), 10.0)
    guess = math.log1p(mu * mu / (steps * rate * rate)) ** -0.5
    return calibrate_below(functools.partial(epoch_event, rate, steps=steps), profile, start=guess)
