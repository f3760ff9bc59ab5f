"""Direct preference optimisation (Rafailov et al. 2023): a record is a prompt with a chosen and a rejected continuation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm import _validate as check
from dperm.torch.data.labelled_items import pair_of
from dperm.torch.data.records import TorchRecords
from dperm.torch.engine.ordinary_losses import evaluating
from dperm.torch.language.losses import IGNORED, log_probabilities, logits_of
from dperm.torch.tensors.global_randomness import kept_states
from dperm.torch.tensors.nested import map_tensors, on_device

_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")


class PreferenceLoss(StrEnum):
    """What is made of a record's margin, the policy's log-odds of chosen against rejected less the reference's: "sigmoid" (DPO;
    Rafailov et al. 2023, equation 7), "hinge" (SLiC; Zhao et al. 2023), and "ipo" (Azar et al. 2023, equation 17)."""

    SIGMOID = "sigmoid"
    HINGE = "hinge"
    IPO = "ipo"


class DirectPreference(nn.Module):
    """`model` on records of two continuations, and their loss: `PrivateTrainer(preference, preference.loss, …)`.

    Inputs are those of `PreferenceTokens`: "input_ids" and "attention_mask" (b, 2, T), chosen before rejected. The parameters
    are the model's own, so that `model` itself is trained. The reference's log-probabilities are of `reference`, a frozen model
    that is run beside, or the records' own "ref_chosen_logps" and "ref_rejected_logps" (b,), as `with_reference` makes them:
    that takes no second model in memory and one pass over the records in place of one in every epoch.

    Parameters
    ----------
    model : a causal language model: `model(input_ids=…, attention_mask=…)` gives scores (b, T, V), or has them as "logits".
    beta : how much a departure from the reference counts; as in TRL, of "ipo" the regularisation τ.
    loss_type : "sigmoid", "hinge" or "ipo" (`PreferenceLoss`), where "ipo" divides by the tokens of each continuation, as TRL.
    reference : None where records have the reference's log-probabilities. Its weights are to be public: made without these
        records, or by a release that the certificates in `spent` have.

    Raises ValueError for a reference that shares a trained parameter with the model: it would move with it.
    """

    def __init__(
        self, model: nn.Module, *, beta: float = 0.1, loss_type: str = "sigmoid", reference: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.beta = check.positive("beta", beta)
        self.loss_type = PreferenceLoss(check.choice("loss_type", loss_type, tuple(kind.value for kind in PreferenceLoss)))
        if reference is not None and any(parameter.requires_grad for parameter in reference.parameters()):
            raise ValueError(
                "Expected a reference that is frozen, got one with parameters that require a gradient, which would be trained as "
                "well, and which the policy may share: give copy.deepcopy(model).requires_grad_(False), made before the run, or "
                "records with the reference's log-probabilities (with_reference)."
            )
        self.reference = None if reference is None else reference.eval()
        self.training = model.training

    def train(self, mode: bool = True) -> DirectPreference:
        """The policy's mode; the reference stays in evaluation mode."""
        super().train(mode)
        if self.reference is not None:
            self.reference.eval()
        return self

    def forward(
        self, ref_chosen_logps: Tensor | None = None, ref_rejected_logps: Tensor | None = None, **inputs: Any
    ) -> dict[str, Tensor]:
        """Scores (b, 2, T, V) of the policy as "logits"; the reference's as "reference_logits", or its log-probabilities (b, 2)
        as "reference"."""
        rows = map_tensors(lambda tensor: tensor.flatten(0, 1), inputs)
        found = {"logits": logits_of(self.model(**rows)).unflatten(0, (-1, 2))}
        if ref_chosen_logps is not None and ref_rejected_logps is not None:
            found["reference"] = torch.stack([ref_chosen_logps, ref_rejected_logps], dim=1)
        elif self.reference is not None:
            with torch.no_grad():
                found["reference_logits"] = logits_of(self.reference(**rows)).unflatten(0, (-1, 2))
        else:
            raise ValueError(
                "Expected the reference's log-probabilities: records with ref_chosen_logps and ref_rejected_logps, as "
                "with_reference(records, model, collate_fn) makes them before the run, or DirectPreference(reference=…)."
            )
        return found

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        """(b,) one loss for each record, of what `forward` gives and labels (b, 2, T)."""
        policy = _pairs(outputs["logits"], labels)
        reference = outputs["reference"] if "reference" in outputs else _pairs(outputs["reference_logits"], labels)
        apart = policy - reference.to(policy.dtype)
        if self.loss_type is PreferenceLoss.IPO:
            apart = apart / (labels != IGNORED).sum(2).clamp(min=1)
        margin = apart[:, 0] - apart[:, 1]
        match self.loss_type:
            case PreferenceLoss.SIGMOID:
                return -F.logsigmoid(self.beta * margin)
            case PreferenceLoss.HINGE:
                return torch.relu(1 - self.beta * margin)
            case PreferenceLoss.IPO:
                return (margin - 1 / (2 * self.beta)) ** 2


def _pairs(logits: Tensor, labels: Tensor) -> Tensor:
    """(b, 2) log-probabilities, of scores (b, 2, T, V) and labels (b, 2, T)."""
    return log_probabilities(logits.flatten(0, 1), labels.flatten(0, 1)).unflatten(0, (-1, 2))


class _Referenced(Dataset[Any]):
    """Records with the reference's log-probabilities among their entries."""

    def __init__(self, records: Any, columns: Sequence[tuple[float, float]]) -> None:
        self._records, self._columns = records, columns

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._records[index], **dict(zip(_COLUMNS, self._columns[index], strict=True))}


def with_reference(
    records: Any,
    reference: nn.Module,
    collate_fn: Callable[[list[Any]], Any],
    *,
    autocast: torch.dtype | None = None,
) -> Dataset[Any]:
    """The records, a data set of dicts for `PreferenceTokens`, with "ref_chosen_logps" and "ref_rejected_logps" of the reference
    as it is now: of the policy itself before the run, or of a peft model within `model.disable_adapter()`.

    Each record is run alone, in evaluation mode, so that no column depends on another record. `autocast` as of
    `PrivateTrainer`. Columns of these names that the records have already are replaced. What a data set draws for a record is
    drawn once for its column, and anew in the run. TypeError or ValueError for data that a run refuses.
    """
    TorchRecords(records, collate_fn=collate_fn)  # refuses what a run would refuse, such as a record that is there twice
    device = next(reference.parameters()).device
    narrow = contextlib.nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    columns: list[tuple[float, float]] = []
    with evaluating(reference), torch.no_grad(), kept_states(device), narrow:
        for number in range(len(records)):
            item = {name: entry for name, entry in records[number].items() if name not in _COLUMNS}
            inputs, labels = on_device(pair_of(collate_fn([item])), device)
            rows = map_tensors(lambda tensor: tensor.flatten(0, 1), cast(dict[str, Tensor], inputs))
            chosen, rejected = log_probabilities(reference(**rows), labels.flatten(0, 1)).tolist()
            columns.append((chosen, rejected))
    return _Referenced(records, columns)
