"""Mutants: small faults planted one at a time in what charges, calibrates, bounds, clips or draws, which fast tests notice."""
