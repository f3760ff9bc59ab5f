"""Training a network privately: `PrivateTrainer`, and what happens before, during and after its steps.

`session.py` gives the order: preflight checks, the charge, the steps, checkpoints. `training_run.py` holds the state of a run,
and `fit_loop.py` what `fit` adds to each step. What can be refused is refused before the charge.
"""
