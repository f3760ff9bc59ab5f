"""Certificates: the privacy loss of a release and its assumptions, as JSON that can be verified and signed.

`Certificate.issue` computes ε from the event. Every sentence about an assumption is in `assumptions.py`, once. Certificates
that are read may be forged, so they are parsed within limits and verified.
"""
