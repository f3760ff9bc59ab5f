"""Accountants: the privacy profile δ(ε) of an event by the tightest theorem that covers it, and calibration to a budget.

Users call `epsilon`, `delta` and `calibrate` of `dperm.privacy`. `accounting.py` chooses the best valid bound; the other
modules each hold one theory. Every result is an upper bound, rounding included (`docs/accounting.md`); a change here needs a
proof.
"""
