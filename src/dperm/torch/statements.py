"""What the certificate of a network's training says it rests on, and what it does not charge."""

from __future__ import annotations

from dperm.privacy import Assumption

__all__ = ["NOT_CHARGED", "assumptions"]

NOT_CHARGED = (
    "settings chosen by looking at the same data (hyper-parameters, architecture, preprocessing), if any were",
    "validation scores, if the validation set is private",
    "errors and warnings of the checks on records, before training and for batches of a new shape: for the data holder only",
)


def assumptions(stated_size: int | None) -> list[Assumption]:
    """`stated_size`: the number of records that the caller gives away although it is private, or None."""
    found = [
        Assumption("One person contributes at most one record.", "caller", "stated"),
        Assumption(
            "Data loading, the model and the loss treat each record by itself; code, initial weights and pretraining do not "
            "depend on these records.",
            "caller",
            "on up to 16 records that differ in length, and again on others during the run: gradients compared with autograd; "
            "losses when other records are exchanged, left out, loud, silent or cut short, in another order and collated alone, "
            "also at moved weights; what modules and loss keep after other records",
        ),
        Assumption(
            "Random masks are drawn for each record and step by themselves, from seeds of the operating system, fresh for every "
            "pass: secret, pseudo-random. Augmentations do not seed a generator themselves.",
            "library",
            "seeded, unless the run's seed is fixed; one mask for a whole batch is refused where it shows",
        ),
        Assumption(
            "Norms and sums in floating point are those of real numbers.",
            "library",
            "norms are raised by what rounding may take from them; the rounding of sums, in single precision about "
            "1e-6 of the sum, is not in the noise",
        ),
    ]
    if stated_size is not None:
        found.append(Assumption(f"The number {stated_size} of records may be known.", "caller", "stated"))
    return found
