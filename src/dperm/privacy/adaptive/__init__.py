"""Accounting for adaptive choices: noise chosen from results, best-of-tries selection, and individual privacy loss.

It is pure arithmetic. What runs such choices is elsewhere: `mechanisms/accuracy_first.py`, `release/selection.py` and
`gradient/individual_accounting.py`.
"""
