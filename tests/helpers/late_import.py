"""A module that a model imports only when it runs."""

SCALE = 2.0
