"""Mechanisms as data: frozen descriptions from which any accountant can compute. No code, no records.

Every event states the neighbouring relation it was built for. `noise_multiplier` is the standard deviation of the
noise ÷ the L2 sensitivity under that relation (clipping at C with noise S: S/C under add/remove, S/(2C) under
replace-one).
"""

from dperm.privacy.events.composed import Composed, SelfComposed
from dperm.privacy.events.disjoint import Disjoint, Side, accounting_cost, alternatives, claims_of, released_leaves
from dperm.privacy.events.event import LARGEST_COUNT as LARGEST_COUNT
from dperm.privacy.events.event import LARGEST_NUMBER as LARGEST_NUMBER
from dperm.privacy.events.event import (
    Event,
    Paid,
    Relation,
    UnsupportedEventError,
    alike,
    begun_periods,
    chosen_on_the_way,
    event_from_dict,
    leaves,
    paid_steps,
    relation_of,
    steps_of,
    sub_event,
)
from dperm.privacy.events.guarantees import LARGEST_LOSS as LARGEST_LOSS
from dperm.privacy.events.guarantees import (
    AboveThreshold,
    ApproximateDP,
    ExponentialMechanism,
    FilteredRdp,
    PrivacyProfile,
    PureDP,
    Unsupported,
)
from dperm.privacy.events.hidden import HiddenIterates, RandomStop
from dperm.privacy.events.noise import BoundedSquaresGaussian, Gaussian, Laplace
from dperm.privacy.events.objective import SHARP_LOSSES as SHARP_LOSSES
from dperm.privacy.events.objective import ObjectivePerturbationEvent
from dperm.privacy.events.sampled import (
    CyclicSampled,
    PoissonSampled,
    RandomAllocation,
    RowsSampled,
    SampledWithoutReplacement,
    TruncatedPoisson,
)

__all__ = [
    "AboveThreshold",
    "ApproximateDP",
    "BoundedSquaresGaussian",
    "Composed",
    "CyclicSampled",
    "Disjoint",
    "Event",
    "ExponentialMechanism",
    "FilteredRdp",
    "Gaussian",
    "HiddenIterates",
    "Laplace",
    "ObjectivePerturbationEvent",
    "Paid",
    "PoissonSampled",
    "PrivacyProfile",
    "PureDP",
    "RandomAllocation",
    "RandomStop",
    "Relation",
    "RowsSampled",
    "SampledWithoutReplacement",
    "SelfComposed",
    "Side",
    "TruncatedPoisson",
    "Unsupported",
    "UnsupportedEventError",
    "accounting_cost",
    "alike",
    "alternatives",
    "begun_periods",
    "chosen_on_the_way",
    "claims_of",
    "event_from_dict",
    "leaves",
    "paid_steps",
    "relation_of",
    "released_leaves",
    "steps_of",
    "sub_event",
]
