"""The loss of a causal language model for each record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

#: The label of a token that counts in no loss, as in Transformers.
IGNORED = -100


def logits_of(outputs: Any) -> Tensor:
    """The scores (b, T, V) among a model's outputs: the tensor itself, or what is called "logits". TypeError without them."""
    if isinstance(outputs, Tensor):
        return outputs
    found: Any = cast(Any, outputs).get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(f"Expected a tensor of scores, or outputs with one called 'logits', got {type(outputs).__name__}.")
    return found


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(losses (b, T − 1), counted (b, T − 1)): −log p of each label given the tokens before it, in single precision at least.
    Tokens with the label −100 have loss zero and do not count.

    ValueError where scores (b, T, V) and labels (b, T) do not have the same length.
    """
    if logits.dim() != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"Expected scores (b, T, V) and labels (b, T) of the same tokens, got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}: labels are not to be shifted, the loss does that. Where a model puts tokens in front "
            "(prompt tuning), give the scores of the others."
        )
    following = labels[:, 1:]
    precise = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(precise.transpose(1, 2), following, reduction="none", ignore_index=IGNORED)
    return losses, following != IGNORED


def causal_language_loss(outputs: Any, labels: Tensor) -> Tensor:
    """(b,) the mean cross entropy over the tokens of each record; zero for a record without targets.

    Each token is predicted from those before it: the shift is done here, so `labels` (b, T) are the input's tokens at their own
    places, and −100 where a token is not to be learnt (padding, a prompt). `outputs` are scores (b, T, V) or have them as
    "logits". Transformers' own loss of a batch is the mean over all of its tokens, which would let one record's length change
    the weight of another; on a batch of one record both are the same.
    """
    losses, counted = token_losses(logits_of(outputs), labels)
    return losses.sum(1) / counted.sum(1).clamp(min=1)


def log_probabilities(outputs: Any, labels: Tensor) -> Tensor:
    """(b,) the log-probability of each row's labelled tokens, added up: of a completion given its prompt where the prompt's
    labels are −100. Arguments as of `causal_language_loss`."""
    return -token_losses(logits_of(outputs), labels)[0].sum(1)
