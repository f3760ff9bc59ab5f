"""The formulas that papers and lectures give for the cost of noise, with their side conditions, beside exact accounting.

They are for reading and for comparison. No certificate rests on them: what dperm charges is exact, or a bound that is nearly so
(`dperm.privacy.epsilon`). Each raises ValueError where its proof does not hold.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from dperm import _validate as check
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.accounting import epsilon as event_epsilon
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.privacy.accountants.rdp import rdp_epsilon
from dperm.privacy.events import Event, Gaussian, PoissonSampled, Relation, SelfComposed

_MOST_MOMENTS = 4096  # orders that are tried


def classical_gaussian(epsilon: float, delta: float) -> float:
    """Standard deviation ÷ sensitivity that gives (ε, δ): √(2 ln(1.25/δ))/ε, for ε < 1 (Dwork & Roth 2014, Theorem A.1)."""
    if not check.positive("epsilon", epsilon) < 1:
        raise ValueError(f"Expected epsilon below 1, where the classical Gaussian mechanism is proved, got {epsilon:g}.")
    return math.sqrt(2 * math.log(1.25 / check.fraction("delta", delta))) / epsilon


def basic_composition(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(Σε, Σδ) of (ε, δ)-private parts, each chosen by what came before (Dwork & Roth 2014, Theorem 3.16)."""
    if not parts:
        raise ValueError("Expected at least one part.")
    return sum(_epsilon(epsilon) for epsilon, _ in parts), sum(_delta(delta) for _, delta in parts)


def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """(ε', kδ + δ') of k = `count` parts that are (ε, δ)-private, for δ' = `slack`, ε' = ε√(2k ln(1/δ')) + kε(e^ε − 1)
    (Dwork, Rothblum, Vadhan 2010; Dwork & Roth 2014, Theorem 3.20)."""
    k, part = check.integer("count", count), _epsilon(epsilon)
    first = part * math.sqrt(2 * k * math.log(1 / check.fraction("slack", slack)))
    return first + k * part * math.expm1(part), k * _delta(delta) + slack


def best_composition(epsilon: float, delta: float, count: int, target: float) -> float:
    """The least ε' at which any `count` parts that are (ε, δ)-private are together (ε', `target`)-private: ∞ where their δ alone
    exceed it. Each is at worst randomised response that fails with chance δ: the profile is a sum over binomials (Kairouz, Oh,
    Viswanath 2015, Theorem 3.3). Replacing a record has the same profile as adding or removing it."""
    k, part = check.integer("count", count), _epsilon(epsilon)
    known = -math.expm1(k * math.log1p(-_delta(delta)))
    if not known < check.fraction("target", target):
        return math.inf
    places = np.arange(k + 1)
    losses = (k - 2 * places) * part
    log_choose = gammaln(k + 1) - gammaln(places + 1) - gammaln(k - places + 1)
    masses = np.exp(log_choose + (k - places) * part - k * np.logaddexp(0.0, part))

    def beyond(value: float) -> float:
        with np.errstate(over="ignore"):
            return known + (1 - known) * float(masses @ np.maximum(0.0, -np.expm1(value - losses))) - target

    if beyond(0.0) <= 0:
        return 0.0
    found = root_finding.root(beyond, 0.0, k * part, xtol=1e-12)
    return min(k * part, found * (1 + 1e-9) + 1e-11)


def subsampled(epsilon: float, delta: float, rate: float) -> tuple[float, float]:
    """(ln(1 + q(e^ε − 1)), qδ): an (ε, δ)-private mechanism on a random part of the records (Balle, Barthe, Gaboardi 2018).

    Each drawn with probability q = `rate` under add-or-remove-one; or m of n without replacement, q = m/n, under replace-one.
    """
    q = check.fraction("rate", rate, one=True)
    return math.log1p(q * math.expm1(_epsilon(epsilon))), q * _delta(delta)


def lecture_sgd_noise(size: int, steps: int, epsilon: float, delta: float, lipschitz: float = 1.0) -> float:
    """σ = 16l√(T ln(2/δ) ln(2.5T/(δn)))/(nε) of SGD on one uniform record a step, replace-one (Bassily, Smith, Thakurta 2014, as
    taught). ValueError unless ε ≤ 1 and each step's nε/(4√(2T ln(2/δ))) ≤ 1, which the slide leaves out: the Gaussian mechanism
    is used at that ε, and amplification at twice the rate."""
    n, T = check.integer("size", size), check.integer("steps", steps)
    if not check.positive("epsilon", epsilon) <= 1:
        raise ValueError(f"Expected epsilon of at most 1, got {epsilon:g}.")
    each = n * epsilon / (4 * math.sqrt(2 * T * math.log(2 / check.fraction("delta", delta))))
    if not each <= 1.0:
        raise ValueError(f"Expected more steps: each would have epsilon = {each:.3g} before it is amplified, and 1 is the most.")
    if not delta * n < 2 * T:
        raise ValueError("Expected more steps: each would have a delta above 1 before it is amplified.")
    log = math.log(2.5 * T / (delta * n))
    return 16 * check.positive("lipschitz", lipschitz) * math.sqrt(T * math.log(2 / delta) * log) / (n * epsilon)


def moments_rule(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """ε by the leading term of the moments accountant, min over λ of (Tq²λ(λ + 1)/((1 − q)σ²) + ln(1/δ))/λ: an approximation.

    The lemma (Abadi and others 2016, Lemma 3) adds O(q³λ³/σ³) without a constant, so that this is no bound. ValueError outside of
    its conditions σ ≥ 1, q < 1/(16σ) and λ ≤ σ² ln(1/(qσ)).
    """
    sigma, q = check.positive("noise_multiplier", noise_multiplier), check.fraction("rate", rate, one=True)
    if not sigma >= 1:
        raise ValueError(f"Expected noise of at least 1, got {sigma:g}.")
    if not q < 1 / (16 * sigma):
        raise ValueError(f"Expected a rate below 1/(16·noise) = {1 / (16 * sigma):.3g}, got {q:g}.")
    most = int(min(_MOST_MOMENTS, sigma**2 * math.log(1 / (q * sigma))))
    if most < 1:
        raise ValueError("Expected more noise: no moment is within the lemma's reach.")
    moment = check.integer("steps", steps) * q**2 / ((1 - q) * sigma**2)
    budget = math.log(1 / check.fraction("delta", delta))
    return min(moment * (order + 1) + budget / order for order in range(1, most + 1))


@dataclass(frozen=True)
class Rung:
    """One way to account for a plan. `epsilon` is None where it does not apply, `why` says why; `bound` is False for an
    approximation."""

    name: str
    source: str
    epsilon: float | None
    why: str = ""
    bound: bool = True


def ladder(
    noise_multiplier: float,
    rate: float = 1.0,
    steps: int = 1,
    delta: float = 1e-5,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
) -> list[Rung]:
    """ε of `steps` Poisson-sampled Gaussian releases by every formula of the field, the oldest first and the exact one last.

    Where a formula leaves open how δ is shared out, the best share is taken.
    """
    check.fraction("delta", delta)
    event: Event = SelfComposed(PoissonSampled(rate, Gaussian(noise_multiplier, relation)), steps)
    exact = event_epsilon(event, delta)

    def classical(small: float) -> float:
        first = math.sqrt(2 * math.log(1.25 / small)) / noise_multiplier
        if not first < 1:
            raise ValueError(f"a step alone has epsilon = {first:.3g}, and the classical formula needs it below 1")
        return first

    def balle(small: float) -> float:
        return gaussian_epsilon(noise_multiplier, small)

    def basic(each: float, small: float, left: float) -> float:
        return each * steps

    def advanced(each: float, small: float, left: float) -> float:
        return advanced_composition(each, small, steps, left)[0]

    def best_of_any(each: float, small: float, left: float) -> float:
        return best_composition(each, small, steps, delta)

    shared = functools.partial(_best_share, rate=rate, steps=steps, delta=delta, relation=relation)
    moments = functools.partial(moments_rule, noise_multiplier, rate, steps, delta)
    any_steps = "best composition of any such steps"
    return [
        _rung("basic composition", "Dwork and others 2006", lambda: shared(classical, basic)),
        _rung("advanced composition", "Dwork, Rothblum, Vadhan 2010", lambda: shared(classical, advanced)),
        _rung("advanced composition of exact Gaussians", "Balle, Wang 2018", lambda: shared(balle, advanced)),
        _rung(any_steps, "Kairouz, Oh, Viswanath 2015", lambda: shared(balle, best_of_any)),
        _rung("moments accountant, leading term", "Abadi and others 2016", moments, bound=False),
        _rung("Rényi divergences", "Mironov 2017; Mironov, Talwar, Zhang 2019", lambda: rdp_epsilon(event, delta)),
        Rung("privacy loss distribution", "this library's charge", exact),
    ]


def _best_share(
    single: Callable[[float], float],
    rule: Callable[[float, float, float], float],
    *,
    rate: float,
    steps: int,
    delta: float,
    relation: Relation,
) -> float:
    """The best share of δ for the steps: `rule` has a step's ε and δ, amplified, and what is left of δ."""
    if rate < 1 and relation is Relation.REPLACE_ONE:
        raise ValueError("amplification by Poisson sampling is proved for adding or removing a record")

    def at(logit: float) -> float:
        share = delta / (1 + math.exp(-logit))
        small = share / (steps * rate)
        if not small < 1:
            raise ValueError("the steps' share of delta is no probability")
        return rule(*subsampled(single(small), small, rate), delta - share)

    return root_finding.least(at, -12.0, 12.0, xtol=1e-3)[1]


def _rung(name: str, source: str, make: Callable[[], float], *, bound: bool = True) -> Rung:
    """What a formula gives, or why it gives nothing."""
    try:
        return Rung(name, source, make(), bound=bound)
    except ValueError as error:
        return Rung(name, source, None, (str(error)[0].lower() + str(error)[1:]).rstrip("."), bound)


def _epsilon(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"Expected epsilon of at least 0, got {value!r}.")
    return float(value)


def _delta(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"Expected delta between 0 and 1, got {value!r}.")
    return float(value)
