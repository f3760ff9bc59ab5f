"""DPIS in progress: the memory of norms, proposals and acceptance, and the noise of each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device
from numpy.typing import NDArray

from dperm._types import Array
from dperm.gradient.bounding import Unit
from dperm.gradient.importance.settings import ImportanceSettings
from dperm.gradient.policy import Gradients
from dperm.gradient.sampling import Poisson
from dperm.objectives.per_example import Pass
from dperm.objectives.sums import RunningSum, exact_sum
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.privacy.events import Event, Gaussian, PoissonSampled, Relation, SelfComposed, steps_of
from dperm.release import GaussianNoise

Indices = NDArray[np.intp]

_PROPOSED, _ACCEPTED = 0, 1  # the coins tossed on a draw
_FRESH = 0.5  # of an epoch: a record seen since then is not looked at again
_CHUNK = 8192  # records gathered at once for a look: they may be mapped from a file that memory does not hold


@dataclass(frozen=True)
class ImportanceEpoch:
    """What is public about an epoch of DPIS: all of it is released, or follows from releases.

    `norm_sum` is K̃, `rate` the sampling rate bC/K̃ that a step is charged at, `noise_multiplier` its noise ÷ sensitivity (σ_e),
    `gradient_noise` the paper's σ_G = σ_e·K̃/(N·C), `ratio` r = K̃/(N·C): a step costs as much as DP-SGD's with batches of b/r.
    """

    epoch: int
    clipping_norm: float
    norm_sum: float
    rate: float
    noise_multiplier: float
    gradient_noise: float
    ratio: float


class ImportanceGradients(Gradients[ImportanceSettings]):
    """An `ImportancePlan` in progress.

    A record is included in three stages that together are no likelier than `rate`: Poisson sampling at `rate`, which is what
    is charged; a coin that keeps it with ĝᵢ/C, ĝᵢ = min(k·nᵢ, C) from the norm last seen; and, once its gradient is known, a coin
    with n'ᵢ/ĝᵢ. The memory of norms, and of when each was seen, is private. `observe`, if given, is handed the passes over
    proposed records: not private.
    """

    def start(self) -> None:
        plan, count = self.policy, len(self.records)
        plan.same(self.objective.facts.relation)
        if self.channel.filter is None:
            raise ValueError("Expected a channel that was charged for the plan's event: DPIS runs within a filter.")
        assert plan.public_size is not None
        self.epochs: list[ImportanceEpoch] = []
        self._size = plan.public_size
        self._filter = self.channel.filter
        self._mine = self._share(np.arange(count))
        self._norms = np.zeros(count)  # of others' records always
        self._seen = np.full(count, -plan.steps_per_epoch)  # the step at which; never yet
        self._clipping_norm = plan.clipping_norm
        self._charged_from = self.step  # the first step of what the channel was charged for
        self._epoch: ImportanceEpoch | None = None
        self._draws = 0
        self._looked = False
        self._noise_in_mean: float | None = None

    @property
    def noise_deviation(self) -> float | None:
        left = self.policy.post.noise_left(self.objective.facts.dimension)
        return None if left is None or self._noise_in_mean is None else self._noise_in_mean * left

    def _share(self, numbers: Indices) -> NDArray[np.bool_]:
        """(n,): which of these records are here. Other processes of the run have the rest, and remember them."""
        share = getattr(self.records, "share", None)  # of records that ranks may have parts of
        return np.ones(len(numbers), dtype=bool) if share is None else share.mine(numbers)

    @property
    def clipping_norm(self) -> float:
        return self._clipping_norm

    def spent(self, relation: Relation, start: int) -> Event | None:
        return self.policy.spending.spent(self._filter)

    def public(self) -> dict[str, Any]:
        return {
            "spent": dict(self._filter.accounts),
            "charge_id": self.channel.charge_id,
            "charged_from": self._charged_from,
            "clipping_norm": self._clipping_norm,
            "epochs": self.trace(),
        }

    def summary(self) -> dict[str, Any]:
        return {"public_size": self._size, "epochs": self.trace()}

    def trace(self) -> list[dict[str, Any]]:
        return [asdict(epoch) for epoch in self.epochs]

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Norms are not in checkpoints: records may be in another order, or on other ranks, where one would count twice. All are
        looked at again."""
        if public["charge_id"] == self.channel.charge_id:  # its log may have lost parts
            self._filter.know(public["spent"])
            self._charged_from = int(public["charged_from"])
        self._clipping_norm = float(public["clipping_norm"])
        self.epochs = [ImportanceEpoch(**epoch) for epoch in public["epochs"]]

    def __call__(self, theta: Any) -> Any:
        number = self.step // self.policy.steps_per_epoch
        if self._epoch is None or self._epoch.epoch != number:
            self._epoch = self._open(number, theta)
        epoch, plan = self._epoch, self.policy
        unit = Unit(plan.norm_floor * epoch.clipping_norm)
        total = RunningSum()
        draw, indices, proposals = next(self._proposals)
        start = 0
        for batches in self.records.stream([indices]):  # of this step alone: nobody is proposed before the last step's norms
            for batch in batches:
                at_theta = self.objective.per_example(theta, batch)
                if self.observe is not None:
                    self.observe(at_theta)
                part = slice(start, start + len(at_theta.norms))
                start = part.stop
                total.add(self._accepted(at_theta, draw, indices[part], proposals[part], unit))
        sensitivity = unit.sensitivity(plan.budget.relation)
        query = total.query(sensitivity, epoch.noise_multiplier)
        query = self.channel.summed(unit.empty(theta) if query is None else query)
        noise = GaussianNoise(sensitivity, epoch.noise_multiplier, epoch.rate, what="sum of unit gradients")
        released = self.channel.release(query, noise)
        self.step += 1
        self._noise_in_mean = sensitivity * epoch.noise_multiplier * epoch.norm_sum / (self._size * plan.expected_batch_size)
        released *= epoch.norm_sum / (self._size * plan.expected_batch_size)  # in place: nobody else holds it
        return plan.post.apply(self.regularised(released, theta))

    def _accepted(self, at_theta: Pass, draw: int, indices: Indices, proposals: Array, unit: Unit) -> Any:
        """Accept some of a physical batch of proposed records: the sum of their unit vectors."""
        device_norms = at_theta.norms
        norms = _plain(device_norms)
        self._norms[indices], self._seen[indices] = norms, self.step
        keep = np.minimum(self._counted(norms) / proposals, 1.0)
        stayed = np.isin(indices, self.channel.thin(indices, keep, (draw, _ACCEPTED)), assume_unique=True)
        xp = array_namespace(device_norms)
        mask = xp.asarray(stayed, dtype=device_norms.dtype, device=device(device_norms))
        return at_theta.weighted_sum(unit.factors(device_norms) * mask, unit.bound)

    def _counted(self, norms: Array) -> Array:
        """Norms as they count below C, which proposals are cut at: none is shorter than the floor."""
        return np.maximum(norms, self.policy.norm_floor * self._clipping_norm)

    def _propose(self, rate: float, steps: int) -> Iterator[tuple[int, Indices, Array]]:
        """For each step the number of its draw, the records that are proposed of those that Poisson sampling at `rate` drew, and
        what their proposals were cut at."""
        plan = self.policy
        for everybodys in self.channel.draw(Poisson(rate), len(self._norms), steps):
            drawn = everybodys[self._mine[everybodys]]
            ceilings = np.minimum(plan.proposal_factor * self._counted(self._norms[drawn]), self._clipping_norm)
            proposed = self.channel.thin(drawn, ceilings / self._clipping_norm, (self._draws, _PROPOSED))
            self._draws += 1
            yield self._draws - 1, proposed, ceilings[np.isin(drawn, proposed, assume_unique=True)]

    # Epochs

    def _open(self, number: int, theta: Any) -> ImportanceEpoch:
        """This epoch as an interrupted run left it, or a new one."""
        left = self.policy.steps_per_epoch - self.step % self.policy.steps_per_epoch
        epoch = self._found(number, left)
        if epoch is not None:
            self._look(theta)  # the memory may be of another epoch, or empty; a look releases nothing
        else:
            try:
                epoch = self._begin(number, left, theta)
            except BudgetExceeded:
                epoch = self._found(number, left)  # a copy of this run was faster: its epoch is this one's too
                if epoch is None:
                    raise
        self._clipping_norm = epoch.clipping_norm
        self._proposals = self._propose(epoch.rate, left)
        self.epochs = [known for known in self.epochs if known.epoch < number] + [epoch]
        return epoch

    def _found(self, number: int, steps: int) -> ImportanceEpoch | None:
        """An epoch whose last `steps` steps the spend log says are paid for already."""
        for event, note, first in reversed(self.channel.parts()):
            # a part pays for the last steps of its epoch: a copy that entered late paid for no more than those
            if first is not None and note["epoch"]["epoch"] == number and steps_of(event) >= steps:
                self.channel.reopen(event, first)
                return ImportanceEpoch(**note["epoch"])
        return None

    def _begin(self, number: int, steps: int, theta: Any) -> ImportanceEpoch:
        """Release K*, where the clipping norm adapts, and K; plan and pay for the epoch's steps."""
        plan, channel = self.policy, self.channel
        fresh = not self._looked  # nothing is remembered: at the start, or continued
        if fresh:
            self._look(theta)
        if plan.adaptive is not None and number > 0:
            ceiling = plan.adaptive.ceiling * plan.clipping_norm
            unchanged = self._clipping_norm * self._size / plan.adaptive.scale
            self._clipping_norm = plan.next_clipping_norm(self._released_sum(ceiling, "K*", unchanged))
        norm = self._clipping_norm
        if number % plan.pass_every == 0 and not fresh:
            self._look(theta)
        released = self._released_sum(norm, "K", self._size * norm)
        rate = channel.source.first(lambda: plan.draw_rate(released, norm))  # last digits may be others elsewhere
        norm_sum = plan.expected_batch_size * norm / rate
        ratio = norm_sum / (self._size * norm)
        steps = plan.spending.paid_at_once(steps)
        noise, refused = channel.source.first(lambda: self._noise(number, steps, rate))
        if refused:  # everywhere: what follows is done together
            raise BudgetExceeded(refused)
        epoch = ImportanceEpoch(number, norm, norm_sum, rate, noise, noise * ratio, ratio)
        part = SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps)
        first = (number + 1) * plan.steps_per_epoch - steps - self._charged_from  # these are the last ones of the epoch
        channel.allow(part, {"what": "steps", "epoch": asdict(epoch)}, first=first)
        return epoch

    def _noise(self, number: int, steps: int, rate: float) -> tuple[float, str]:
        """The noise multiplier of an epoch; or why there is none."""
        try:
            return self.policy.noise_multiplier(self._filter, number, steps, rate), ""
        except BudgetExceeded as error:
            return 0.0, str(error)

    def _look(self, theta: Any) -> None:
        """Norms at θ of all records that were not seen for half an epoch: most of those that are drawn often were."""
        stale = np.flatnonzero(self._mine & (self.step - self._seen > _FRESH * self.policy.steps_per_epoch))
        chunks = [stale[start : start + _CHUNK] for start in range(0, len(stale), _CHUNK)]
        start = 0
        for batches in self.records.stream([None] if len(stale) == len(self._seen) else chunks):
            for batch in batches:
                norms = _plain(self.objective.per_example(theta, batch, norms_only=True).norms)
                self._norms[stale[start : start + len(norms)]] = norms
                start += len(norms)
        self._seen[stale] = self.step
        self._looked = True

    def _released_sum(self, cut: float, what: str, otherwise: float) -> float:
        """Σ min(nᵢ, cut) of the norms last seen, plus noise: one record moves it by no more than `cut`. `otherwise`, where
        interrupted runs spent what it costs."""
        noise = self.policy.spending.norm_noise(self._filter)
        try:
            self.channel.allow(Gaussian(noise), {"what": what})
        except BudgetExceeded:
            return otherwise
        total = self.channel.summed(exact_sum(self._norms, cut))
        return float(self.channel.release(total, GaussianNoise(cut, noise, what=f"sum of norms {what}"))[0])


def _plain(values: Any) -> Array:
    """In double precision, on the host."""
    return np.asarray(to_device(values, "cpu"), dtype=np.float64)
