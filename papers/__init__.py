"""Published experiments, run again: `python -m papers.<name>`. Outside of the package; public interfaces only."""
