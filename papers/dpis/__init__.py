"""DPIS (Wei, Bao, Xiao, Yang 2022): its tables and figure, ours beside theirs, and ablations of our own."""
