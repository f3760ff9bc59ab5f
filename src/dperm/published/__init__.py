"""Published algorithms that are not private at the ε that their authors state: they run, with a warning, and no ε is certified.

They use nothing of this package that a project elsewhere could not use: `tests/test_layers.py` holds it. Importing this package
makes their methods known by key.
"""

from dperm.published.m_ngp import PublishedNormalisedGradient, PublishedNormalisedPlan
from dperm.published.pidp_sgd import PidpPlan, PublishedPidp, pidp_sgd

__all__ = ["PidpPlan", "PublishedNormalisedGradient", "PublishedNormalisedPlan", "PublishedPidp", "pidp_sgd"]
