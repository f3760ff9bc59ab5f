"""A module whose attribute a model of the tests counts in."""

count = 0
