"""Privacy as arithmetic: events, accountants, calibration, certificates, the spend log and the release channel.

Knows nothing of models or data. All logarithms are natural, every ε and δ is an upper bound.
"""

from dperm.privacy.accounting import delta, epsilon
from dperm.privacy.calibration import calibrate, calibrate_steps
from dperm.privacy.certificate import Certificate
from dperm.privacy.channel import Channel
from dperm.privacy.events import (
    ApproximateDP,
    Composed,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    Relation,
    SelfComposed,
    Unsupported,
    UnsupportedEventError,
)
from dperm.privacy.filters import BudgetExceeded, ProfileFilter, RdpFilter, privacy_profile, rdp_budget
from dperm.privacy.ledger import SpendLog, spend_log
from dperm.privacy.recording import Forced, Recorder, Recording, UnpaidReleaseError
from dperm.privacy.source import Provenance, Source, SystemSource
from dperm.privacy.statements import Assumption

__all__ = [
    "ApproximateDP",
    "Assumption",
    "BudgetExceeded",
    "Certificate",
    "Channel",
    "Composed",
    "Event",
    "ExponentialMechanism",
    "FilteredRdp",
    "Forced",
    "Gaussian",
    "Laplace",
    "ObjectivePerturbationEvent",
    "PoissonSampled",
    "PrivacyProfile",
    "ProfileFilter",
    "Provenance",
    "PureDP",
    "RdpFilter",
    "Recorder",
    "Recording",
    "Relation",
    "SelfComposed",
    "Source",
    "SpendLog",
    "SystemSource",
    "UnpaidReleaseError",
    "Unsupported",
    "UnsupportedEventError",
    "calibrate",
    "calibrate_steps",
    "delta",
    "epsilon",
    "privacy_profile",
    "rdp_budget",
    "spend_log",
]
