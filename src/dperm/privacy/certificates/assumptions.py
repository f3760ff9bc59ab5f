"""What certificates rest on and what they do not charge: every sentence that dperm says of that, once, by a key.

Code asks for the key; the sentence is for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from dperm import _validate as check
from dperm._json import on_one_line

Checked = Literal["caller", "library"]


@dataclass(frozen=True)
class Assumption:
    """Something the guarantee rests on: who answers for it, and how it was checked. `key` says what it is about, for code.

    Each is put on one line. TypeError for what is no text, ValueError for another who answers.
    """

    text: str
    responsible: Checked
    checked: str
    key: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if not isinstance(given, str):
                raise TypeError(f"Expected an assumption's {field.name} as text, got {given!r}.")
            object.__setattr__(self, field.name, on_one_line(given))
        check.choice("responsible", self.responsible, get_args(Checked))


#: What holds of noise that `NoiseStream` makes.
EXACT_NOISE = (
    "Noise on what leaves is rounded real numbers, exactly, on a public grid of powers of two, and added there: low bits tell "
    "nothing. Noise that stays inside, of objectives and of hidden steps, is within 2⁻⁴² of real normals, which is charged. The "
    "keystream is taken for random, the platform's logarithm, tangent, sine and cosine for right to 8 units in the last place."
)


@dataclass(frozen=True)
class Provenance:
    """Where the noise of a release came from: how it was `seeded`, what holds of its `arithmetic`, and whether it protects."""

    seeded: str
    arithmetic: str
    private: bool = True

    @classmethod
    def audit(cls) -> Provenance:
        """Of a release that an audit sees or sets."""
        return cls("an audit's: NOT PRIVATE", "an audit looks at the noise", private=False)


# Of any release

SCHEMA = Assumption(
    "Ranges, categories, and how the schema says that entries are read were known without the rows.",
    "caller",
    "stated",
    "schema",
)
#: of files without a schema, whose target's range is stated beside them
TARGET_RANGE = Assumption("The range of the target was known without the records.", "caller", "stated", "target range")

#: in the public fact "units" where what is protected are clients, on whose records local models are trained
CLIENTS = "clients"

ONE_RECORD = Assumption("One person contributes at most one record.", "caller", "stated", "one record")


def persons(rows: int, averaged: bool = True, trained: bool = False) -> list[Assumption]:
    """Of records that are persons with several rows each, which are `averaged`, or count each by itself; where a model is
    `trained` on them locally, they are called clients."""
    one = "client" if trained else "person"
    apart = f"All rows of one {one}, and of no other, carry the same value in the column that tells {one}s apart."
    used = f"Of each {one} one row is used, chosen by that {one}'s rows alone."
    if rows > 1:
        counted = "and their losses are averaged" if averaged else "and each is drawn and bounded by itself"
        counted = "and a local model is trained on them" if trained else counted
        used = f"Of each {one} at most {rows:,} rows are used, chosen by that {one}'s rows alone, {counted}."
    return [
        Assumption(apart, "caller", "stated", "persons"),
        Assumption(used, "library", "enforced: others are left out", "rows of a person"),
    ]


def parts_of_records(parts: int, of_persons: bool) -> list[Assumption]:
    """Of mechanisms on parts of the records, into which dperm splits them."""
    public = f"Which {parts} parts there are was known without the records."
    own = "Each record is in at most one part, by its own entries."
    if of_persons:
        own = "Each person is in at most one part, by that person's rows alone: the part that all of them name."
    return [
        Assumption(public, "caller", "stated", "parts are public"),
        Assumption(f"{own} Parts without any are trained too.", "library", "enforced: dperm splits the records", "disjoint"),
    ]


def disjoint_releases(releases: int, of_persons: bool) -> Assumption:
    """Of releases that somebody says were made from parts of the records."""
    unit, by = ("person", "that person's rows") if of_persons else ("record", "that record")
    return Assumption(
        f"Each {unit} was in the data of at most one of these {releases} releases: which one follows from {by} alone. Which "
        "releases there were was fixed without the records.",
        "caller",
        "stated: dperm did not split the records",
        "disjoint",
    )


def known_sizes(sizes: Sequence[int]) -> Assumption:
    return Assumption(
        f"The numbers {', '.join(map(str, sizes))} of records in parts may be known.", "caller", "stated", "public size"
    )


def known_size(size: int, whose: str = "The", whom: str = "records") -> Assumption:
    return Assumption(f"{whose} number {size} of {whom} may be known.", "caller", "stated", "public size")


def foreign_engine(engine: object) -> Assumption:
    """Of what runs functions on parts of the records, where dperm did not write it."""
    kind = type(engine)
    return Assumption(
        f"The engine {kind.__module__}.{kind.__qualname__} runs what it is given on each part, and adds that up.",
        "caller",
        "that each part is in a sum once; not what functions returned",
        "engine",
    )


_COMPARED = "stated; replay and the white-box audit compare it with what happens"


def stranger(name: str, part: Any, assumed: str, checked: str = _COMPARED) -> Assumption:
    """Of a part whose type dperm did not write: what it is assumed to do."""
    return Assumption(
        f"The {name} {type(part).__module__}.{type(part).__qualname__} {assumed}.",
        "caller",
        checked,
        f"stranger: {name}",
    )


def prepared(public: Sequence[str], learning: Sequence[str]) -> list[Assumption]:
    """Of transformers in front of an estimator, by name: those that use their settings alone, and those that learn from what they
    are fitted on."""
    said: list[Assumption] = []
    if public:
        text = f"Ranges, categories and other settings of what prepares rows ({', '.join(public)}) were known without the rows."
        said.append(Assumption(text, "caller", "stated: each row is prepared by them alone", "preparation"))
    if learning:
        text = (
            f"What prepares rows ({', '.join(learning)}) learnt from no protected record, or what it learnt is charged elsewhere."
        )
        said.append(Assumption(text, "caller", "not checked, and not charged here", "preparation learnt"))
    return said


RELEASED_ANCHOR = Assumption(
    "The parameters that gradients are compared with (the anchor) were made from releases or public data alone.",
    "caller",
    "stated",
    "released anchor",
)

#: of training in rounds, where records are mostly clients
TRUSTED_SERVER = Assumption(
    "Whoever sums the local updates and adds the noise is trusted (central differential privacy): the server sees each client's "
    "update.",
    "caller",
    "stated: updates are clipped, summed and noised in one place, and nothing leaves it before the noise",
    "trusted server",
)
#: the same, where less is charged because clients are drawn at random
SECRET_COHORT = Assumption(
    "Which clients take part in which round stays secret from whoever sees the models: less is charged because clients are drawn "
    "at random.",
    "caller",
    "drawn by dperm from secret randomness; neither written nor returned",
    "secret cohort",
)

#: of records that decide what is kept, and are not charged
PUBLIC_HELD_OUT = Assumption(
    "The held-out records that models are measured on are public, and no record that is protected.",
    "caller",
    "stated",
    "public held-out records",
)

#: of a run that gave its unspent steps back to a budget
STOPPED_BY_RELEASES = Assumption(
    "When the run stopped was decided by what it and others had released, or by what does not depend on the records: not by "
    "exact scores of protected records, nor by anything else that was made of them without noise.",
    "caller",
    "stated; a run that showed private numbers or failed within a step is not settled",
    "stopped by releases",
)

SECRET_TRIES = Assumption(
    "How many tries there were, and what the others gave, stays secret. It shows in how long the search took.",
    "caller",
    "not shown by the library; running time is not hidden",
    "secret tries",
)

# Of linear models


def row_norm(bound: float) -> Assumption:
    text = f"Every row has L2 norm at most {bound:.6g}, constant feature included."
    return Assumption(text, "library", "enforced: longer rows are scaled down", "row norm")


def foreign_loss(name: str) -> Assumption:
    return Assumption(
        f"The loss {name} is of each record by itself and convex, with a slope and a curvature within the constants that it "
        "states, at every prediction and target; its slopes are right to a few units in the last place of a double.",
        "caller",
        "on a grid of predictions and targets, each alone and among others",
        "stranger: loss",
    )


def solver(tolerance: float | None, records: int | None) -> Assumption:
    """`tolerance` is None where it follows from the number of records, which is released first."""
    near = "the tolerance that noise is made for" if tolerance is None else f"{tolerance:.3g} ÷ strong_convexity"
    return Assumption(
        f"The solver comes within {near} of the minimiser on every data set of at most {records} records; noise covers what is "
        "left.",
        "library",
        "proved (docs/objective-perturbation.md), from the loss's constants and an arithmetic that rounds as IEEE 754 says; "
        "larger data sets are refused",
        "solver",
    )


def labels(count: int | None, *, stated: bool) -> Assumption:
    """`count` is None where nobody counted them."""
    text = "The labels present are public." if count is None else f"The set of {count} labels is public."
    taken = "taken from the data" + ("" if count is None else ": the set of labels present is treated as public")
    return Assumption(text, "caller", "stated by the caller" if stated else taken, "labels")


def coins_of_members(members: int, rate: float) -> Assumption:
    """Of models that each count each record by a coin."""
    return Assumption(
        f"Each of {members:,} models counts each record with probability {rate:g}, by a coin of that model and record alone, and "
        "with a weight of at most 1. Nothing is charged less for it.",
        "library",
        "drawn by dperm",
        "coins of members",
    )


#: of weights that a caller gives for records
WEIGHTS_APART = Assumption(
    "Each weight is a function of its own record alone: none was divided by the sum, the mean or the largest of all, or computed "
    "from errors on other records.",
    "caller",
    "stated",
    "weights apart",
)


def clipped_targets(low: float, high: float) -> Assumption:
    within = f"±{high:g}" if low == -high else f"[{low:g}, {high:g}]"
    return Assumption(f"Targets lie in {within}.", "library", "enforced: others are clipped", "targets")


def clipped_counts(low: float, high: float) -> Assumption:
    return Assumption(f"Counts lie in [{low:g}, {high:g}].", "library", "enforced: others are clipped", "targets")


# Of networks

RECORDS_APART = Assumption(
    "Code that reads, transforms and collates a record uses that record alone, and keeps nothing of it for another; the model "
    "and the loss keep nothing of records outside of what they hold, and write into their tensors by PyTorch's own functions "
    "alone, on the way forward and in the thread that runs them; all of it draws from the global generators of torch, NumPy "
    "and Python alone; code, initial weights and pretraining do not depend on these records.",
    "caller",
    "the model and the loss see one record at a time, and each is collated beside a companion made of itself: none influences "
    "another's gradient, in real arithmetic. Looked for, on some records: tensors that something outside of the model keeps, "
    "clocks, the system's randomness, and code that reaches below torch.vmap",
    "records apart",
)

RECORDS_TESTED = Assumption(
    "The model and the loss treat each record of a batch by itself, whatever the parameters are.",
    "caller",
    'independence="tested": the model sees whole batches. On up to 16 records, in evaluation mode, also at moved weights: losses '
    "when other records are exchanged, left out, or in another order; gradients compared with autograd",
    "independence tested",
)


def layer_rule(rule: Any) -> Assumption:
    """Of a rule for a function of torch that dperm did not write."""
    return Assumption(
        f"The rule {rule.__module__}.{rule.__qualname__} computes each record's output from that record alone, and gives its own "
        "gradient, and its norm, of whatever size.",
        "caller",
        "on up to 8 records: gradients compared with autograd",
        "stranger: layer rule",
    )


MASKS = Assumption(
    "Random masks are drawn for each record by itself, or once for a step, from seeds of the operating system: secret, "
    "pseudo-random. So is what the data set and its collation draw for a record from the global generators.",
    "library",
    "seeded, unless the run's seed is fixed",
    "masks",
)
PARTS = Assumption(
    "The processes that hold parts of the records and the network between them are one trusted place: sums without noise pass "
    "between them. Each record is in one part, whenever and wherever the parts are read.",
    "caller",
    "each part is in a sum once, and one that was read again is compared with what it was; the process that asks adds noise",
    "parts",
)
PUBLIC_STEPS = Assumption(
    "Functions given to public_step use released parameters, public values and what they draw: no record, and nothing that was "
    "made of records.",
    "caller",
    "each is called with a copy of the model as it was released. Refused: functions that lead to the data set by names, closures "
    "and attributes; tensors of it in torch's functions; changes of the private model, its gradients and its optimiser. Copies "
    "of records, files and numbers computed elsewhere are not seen",
    "public steps",
)
RANKS = Assumption(
    "The processes of the run and the network between them are one trusted place: sums without noise pass between them. Each "
    "record is on one rank, or the whole set on all.",
    "caller",
    "settings, numbers of records and samples of them are compared; each number's noise is added once, by one rank",
    "ranks",
)
SINGLE_PRECISION = Assumption(
    "Norms and sums in floating point are those of real numbers.",
    "library",
    "norms are raised by what rounding may take from them; the rounding of sums, in single precision about 1e-6 of the sum, is "
    "not in the noise",
    "single precision",
)

# Of statistics

FEATURES_APART = Assumption(
    "A record's features depend on that record alone; the settings depend on none.", "caller", "stated", "records apart"
)


def moments_norm(bound: float) -> Assumption:
    text = f"Every record's scaled moments have L2 norm at most {bound:.6g}."
    return Assumption(text, "library", "enforced: longer ones are scaled down, non-finite ones left out", "row norm")


# Not charged


def settings(*what: str) -> str:
    return f"settings chosen by looking at the same data ({', '.join(what)}), if any were"


WRITTEN = (
    "how the file was read, where separator, encoding and decimal mark were found out from it, and which of its lines are rows"
)
INPUT_CHECKS = "errors and warnings raised by input validation, which speak to the data holder only"
NETWORK_CHECKS = (
    "errors and warnings of the checks on records, before training and for batches of a new shape: for the data holder only"
)
SHOWN = "what was told of single batches during the run (show_private), and whatever was chosen by it"
VALIDATION = "validation scores, if the validation set is private"
