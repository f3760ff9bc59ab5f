"""Normalised gradient perturbation (m-NGP), run again."""
