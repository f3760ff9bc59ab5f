"""The engine: exact gradients of each record by itself, of any model, by running it so that it sees one record.

`isolated` runs a batch. `tracing` says what a run does with each call of torch's functions; `special_functions` handles those
that read, draw or look around, and `rules` those whose per-example gradients have a cheap form (`gradient_forms`).
`scalar_reads` and `randomness` handle values that Python reads and random draws; `model_state` puts back what a pass changed;
`gradient_pass` is the result. `ordinary_losses` calls the model and the loss, and has second derivatives. `whole_batch` is for
models whose independence is only tested (`dperm.torch.independence`).
"""

from dperm.torch.engine import rules
from dperm.torch.engine import special_functions as special
from dperm.torch.engine.gradient_pass import TorchPass
from dperm.torch.engine.isolated import IsolatedEngine

__all__ = ["IsolatedEngine", "TorchPass", "rules", "special"]
