"""The engine: exact gradients of each record by itself, of any model, by running it so that it sees one record.

`isolated` runs a batch. `tracing` says what a run does with each call of torch's functions (`known_functions` lists some by what
they are), `by_record` runs records in step or alone, `batching` reaches the numbers of all, and `running` has a thread's run.
`special_functions` handles calls that read, draw or look around, `rules` those whose per-example gradients have a cheap form
(`gradient_forms`), and `derived` those of parameters alone. `checkpoints` computes parts of a model again on the way back, for
which `watch` finds what they are given; `second_run` then repeats the whole run for a sum that `clipped_sums` bounds. `branches`
and `randomness` handle values that Python reads and random draws; `model_state` puts back what a pass changed, each kind of thing
by `put_back`; `gradient_pass` is the result. `ordinary_losses` calls the model and the loss and has second derivatives.
`whole_batch` is for models whose independence is only tested (`dperm.torch.independence`).
"""

from dperm.torch.engine import rules
from dperm.torch.engine import special_functions as special
from dperm.torch.engine.gradient_pass import TorchPass
from dperm.torch.engine.isolated import IsolatedEngine

__all__ = ["IsolatedEngine", "TorchPass", "rules", "special"]
