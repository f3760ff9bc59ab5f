"""Privacy as arithmetic: events, accountants, calibration, filters and certificates.

Knows nothing of models or data. All logarithms are natural, every ε and δ is an upper bound.
"""

from dperm.privacy.accountants.accounting import delta, epsilon
from dperm.privacy.accountants.calibration import calibrate, calibrate_steps
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, ProfileFilter, RdpFilter, privacy_profile, rdp_budget
from dperm.privacy.accountants.risk import Risk
from dperm.privacy.adaptive.ex_post import ExPost, robbins_epsilon, stopping_delta, stopping_epsilons, stopping_path
from dperm.privacy.adaptive.individual_accounting import affordable_steps, individual_epsilons
from dperm.privacy.adaptive.private_selection import BestOfTries, budget_of_a_try, selection_epsilon
from dperm.privacy.certificates.assumptions import Assumption, Provenance
from dperm.privacy.certificates.certificate import Certificate
from dperm.privacy.events import (
    AboveThreshold,
    ApproximateDP,
    BoundedSquaresGaussian,
    Composed,
    CyclicSampled,
    Disjoint,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    HiddenIterates,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    RandomStop,
    Relation,
    RowsSampled,
    SampledWithoutReplacement,
    SelfComposed,
    TruncatedPoisson,
    Unsupported,
    UnsupportedEventError,
)

__all__ = [
    "AboveThreshold",
    "ApproximateDP",
    "Assumption",
    "BestOfTries",
    "BoundedSquaresGaussian",
    "BudgetExceeded",
    "Certificate",
    "Composed",
    "CyclicSampled",
    "Disjoint",
    "Event",
    "ExPost",
    "ExponentialMechanism",
    "FilteredRdp",
    "Gaussian",
    "HiddenIterates",
    "Laplace",
    "ObjectivePerturbationEvent",
    "PoissonSampled",
    "PrivacyProfile",
    "ProfileFilter",
    "Provenance",
    "PureDP",
    "RandomAllocation",
    "RandomStop",
    "RdpFilter",
    "Relation",
    "Risk",
    "RowsSampled",
    "SampledWithoutReplacement",
    "SelfComposed",
    "TruncatedPoisson",
    "Unsupported",
    "UnsupportedEventError",
    "affordable_steps",
    "budget_of_a_try",
    "calibrate",
    "calibrate_steps",
    "delta",
    "epsilon",
    "individual_epsilons",
    "privacy_profile",
    "rdp_budget",
    "robbins_epsilon",
    "selection_epsilon",
    "stopping_delta",
    "stopping_epsilons",
    "stopping_path",
]
