"""Differentially private empirical risk minimisation, with a certificate for every model.

Users import from the packages that have an `__all__`: `dperm.estimators` (scikit-learn style), `dperm.torch` (networks) and
`dperm.privacy` (accounting) first. Importing `dperm` itself loads nothing else. Modules whose names begin with an underscore
are shared helpers and may change at any time. `docs/design.md` describes the layers.
"""

__version__ = "0.1.0"
