"""The engine: exact gradients of each record by itself, of any model, by running it so that it sees one record.

`apart` runs a batch; `runs` has what a run does with each call of torch's functions, `special` the functions that read, draw
or look around, `rules` those that have per-example gradients in a cheap form; `reads` and `draws` say what becomes of values
that Python reads and of randomness; `passes` is what is left. Before a charge `agreement` compares a model with itself in an
ordinary batch, and `calls` looks for clocks and the like; `beside` and `tested` are for models whose independence is only tested.
"""

from dperm.torch.engine import rules, special
from dperm.torch.engine.apart import Apart
from dperm.torch.engine.passes import TorchPass

__all__ = ["Apart", "TorchPass", "rules", "special"]
