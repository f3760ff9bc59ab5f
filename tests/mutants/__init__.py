"""Mutants: small faults planted one at a time in what charges, calibrates, bounds, clips or draws; a fast test must notice each."""
