"""How each kind of layer turns its input and output gradient into per-example gradients: one short file each.

A rule runs the module with detached parameters and taps its output. It is registered for the class whose `forward` it
stands for; a subclass with a `forward` of its own is another layer and gets the fallback.
"""

from dperm.torch.rules import attention, conv, conv1d, conv_transpose, embedding, linear, norm, recurrent, single_cells
from dperm.torch.rules.fallback import fallback, record_by_record, with_masks_of_records
from dperm.torch.rules.registry import Rule, reason_to_refuse, rule_of, weight_by_hook

__all__ = [
    "Rule",
    "attention",
    "conv",
    "conv1d",
    "conv_transpose",
    "embedding",
    "fallback",
    "linear",
    "norm",
    "reason_to_refuse",
    "record_by_record",
    "recurrent",
    "rule_of",
    "single_cells",
    "weight_by_hook",
    "with_masks_of_records",
]
