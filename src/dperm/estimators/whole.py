"""Fits that succeed, or change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def all_or_nothing(estimator: object) -> Iterator[None]:
    """Whatever fails within: the estimator is as it was, so that no answer mixes two fits. Attributes are to be replaced, not
    changed in place. What was charged stays charged."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
