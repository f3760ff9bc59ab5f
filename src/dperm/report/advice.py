"""The conclusion of a comparison in plain English: the model to use, its ε and expected score, or that no model is useful."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dperm.objectives import RECORD
from dperm.report.candidates import CANDIDATES, DEFAULT
from dperm.report.leaderboard import amount_text, score_text, title_of, value_text
from dperm.report.study import Cell, StudyResult
from dperm.report.study_scores import WITHOUT_COPIES

_LEAST = 0.02  # of the score that ranks, above a constant answer: less is of no use to anybody
_LEFT = 0.05  # of what the best ε gains over a constant answer: where no more than this is left, the gain has ended
_WORTH = 0.1  # of the same: what another mechanism must gain over the default to be named in its place
_FEWEST = 3  # repeats, before an interval says anything
_COPIED = 0.01  # of held-out records with a copy among the training records: fewer change no score that is shown


@dataclass(frozen=True)
class Advice:
    """A recommendation with its reasons.

    Attributes
    ----------
    sentence : str
        The advice, in one or two sentences.
    mechanism, epsilon : str and float, or None
        What it names; None where no private model is better than a constant answer.
    gain_ends : float or None
        The least ε compared from which on more of it gains little; None where more would still gain.
    remarks : tuple of str
        What else a reader must know: rare classes, persons, copies, how the choice was made.
    """

    sentence: str
    mechanism: str | None
    epsilon: float | None
    gain_ends: float | None
    remarks: tuple[str, ...]


def advise(result: StudyResult) -> Advice:
    """The advice that a study's scores give, to the data holder alone: it follows from the records."""
    if all(CANDIDATES[key].claimed for key in result.keys):
        said = "Nothing can be advised: what was compared is run as it was published, and is not private at the ε that it states."
        return Advice(said, None, None, None, tuple(_remarks(result, None)))
    row, useful = _row(result)
    gains = [_gain(result, cell) for cell in row]
    if not any(useful):
        return Advice(_useless(result), None, None, None, tuple(_remarks(result, None)))
    top = max((place for place in range(len(row)) if useful[place]), key=lambda place: gains[place])
    enough = next(place for place in range(len(row)) if useful[place] and gains[top] - gains[place] <= _LEFT * gains[top])
    ends = None if enough == len(row) - 1 and _still_rising(result, gains) else row[enough].epsilon
    chosen = _better(result, row[enough], gains[top]) or row[enough]
    sentence = " ".join(
        part
        for part in (_use(result, chosen), _after(result, row, gains, enough, ends), _before(row, gains, useful, enough))
        if part
    )
    return Advice(sentence, chosen.mechanism, chosen.epsilon, ends, tuple(_remarks(result, chosen)))


def shown_epsilon(result: StudyResult, advice: Advice) -> float:
    """The ε at which all scores are shown: the advised one, or the one nearest 1."""
    return advice.epsilon or min(result.study.epsilons, key=lambda value: abs(value - 1))


def beats(cell: Cell, constant: Cell, result: StudyResult, comparisons: int = 1) -> bool:
    """Whether a model is better than a constant answer by more than chance would give to the best of so many, and by enough to be
    of use."""
    if not _gain(result, cell) >= _LEAST:
        return False
    lead, width = cell.paired(constant, comparisons)
    return lead > width if len(cell.scores) >= _FEWEST and width > 0 else True


def score_in_words(result: StudyResult, cell: Cell) -> str:
    """Format the ranking score for use in a sentence."""
    if result.task.classes == 0 and cell.mean < 0:
        return "predictions worse than the mean"
    return f"{result.metric} {_brief(result, cell.mean)}"


def _brief(result: StudyResult, value: float) -> str:
    """Format a score to two digits, or to more digits if two would read as perfect."""
    if math.isnan(value):
        return "not defined on what was held out"
    if result.measure.unit == "percent":
        return f"{100 * value:.0f} %" if value < 0.995 or value == 1 else f"{100 * value:.1f} %"
    return f"{value:.2f}" if value < 0.995 or value == 1 else f"{value:.3f}"


def _gain(result: StudyResult, cell: Cell) -> float:
    """How far a model is above a constant answer; below every other where it has no score."""
    return -math.inf if math.isnan(cell.mean) else cell.mean - result.baseline


def _row(result: StudyResult) -> tuple[list[Cell], list[bool]]:
    """The cells along ε of the default, and which of them are of use; where it was not compared or none is, those of the
    mechanism that gains most, if one of its is."""
    constant = result.cell("constant", None)
    rows = {key: [result.cell(key, epsilon) for epsilon in result.study.epsilons] for key in result.keys}
    certified = {key: row for key, row in rows.items() if not CANDIDATES[key].claimed}
    own = certified.pop(DEFAULT, None)
    useful = [] if own is None else [beats(cell, constant, result) for cell in own]
    if own is not None and (any(useful) or not certified):
        return own, useful
    many = sum(map(len, certified.values()))
    best = max(certified.values(), key=lambda row: max(_gain(result, cell) for cell in row))
    found = [beats(cell, constant, result, many) for cell in best]
    return (best, found) if own is None or any(found) else (own, useful)


def _better(result: StudyResult, own: Cell, most: float) -> Cell | None:
    """The mechanism that is clearly better than this one at its ε, if there is one: by more than chance would give to the best of
    so many, and by enough to be worth a setting."""
    others = [
        cell
        for cell in result.cells
        if cell.epsilon == own.epsilon and cell.mechanism != own.mechanism and not CANDIDATES[cell.mechanism].claimed
    ]
    if not others or len(own.scores) < _FEWEST:
        return None
    best = max(others, key=lambda cell: _gain(result, cell))
    lead, width = best.paired(own, comparisons=len(others))
    return best if lead > max(width, _WORTH * most) else None


def _use(result: StudyResult, chosen: Cell) -> str:
    """Return the sentence that names the model, its ε and its expected score."""
    candidate = CANDIDATES[chosen.mechanism]
    at = f"at ε = {chosen.epsilon:g}"
    if chosen.mechanism == DEFAULT:
        use = f"Use what `dperm train` runs by itself, {at}"
    elif candidate.command:
        use = f"Use {candidate.title} (`dperm train {candidate.command}`), {at}"
    else:
        use = f"Use {candidate.title} (`mechanism={candidate.method!r}` in Python), {at}"
    return f"{use}: expect {_expected(result, chosen)}."


def _constant(result: StudyResult) -> str:
    """What a model of labels that learnt nothing does."""
    return "always the middle rank" if result.task.ordered else "guessing"


def _expected(result: StudyResult, chosen: Cell) -> str:
    others = [cell for cell in result.references if cell.mechanism != "constant"]
    without = max(others, key=lambda cell: _honest(result, cell))
    name = "boosting" if without.mechanism == "boosting" else "a linear model"
    beside = f"{name} without privacy: {_brief(result, without.mean)}" if _gain(result, without) > 0 else ""
    if result.task.classes:
        said = "; ".join(part for part in (f"{_brief(result, result.baseline)} is {_constant(result)}", beside) if part)
        return f"{score_in_words(result, chosen)} ({said})"
    constant = result.cell("constant", None)
    error, mean = (amount_text(cell.measured("mean absolute error")) for cell in (chosen, constant))
    where = f" of {result.target!r}" if result.target else ""
    said = "; ".join(part for part in (score_in_words(result, chosen), beside) if part)
    return f"predictions{where} that are off by {error} on average, where the mean is off by {mean} ({said})"


def _honest(result: StudyResult, cell: Cell) -> float:
    """The score that ranks, without what copies on both sides of the split add where there are many."""
    alone = cell.measured(WITHOUT_COPIES)
    return _gain(result, cell) if result.copied < _COPIED or math.isnan(alone) else alone - result.baseline


def _after(result: StudyResult, row: Sequence[Cell], gains: Sequence[float], enough: int, ends: float | None) -> str:
    """Return the sentence on the gain from a larger ε."""
    if ends is None:
        return "A larger ε would still gain."
    if enough == len(row) - 1:
        return ""
    more = f"More ε gains little: {score_in_words(result, row[-1])} at ε = {row[-1].epsilon:g}."
    return more + (" A smaller ε than these may do as well." if enough == 0 else "")


def _before(row: Sequence[Cell], gains: Sequence[float], useful: Sequence[bool], enough: int) -> str:
    """Return the sentence on the ε below which the model is no longer useful."""
    useless = [place for place in range(enough) if not useful[place]]
    if useless:
        return (
            f"At ε = {row[useless[-1]].epsilon:g} and below nothing shows that it is better than always giving the same answer."
        )
    poor = [place for place in range(enough) if gains[place] < gains[enough] / 2]
    if poor:
        return f"At ε = {row[poor[-1]].epsilon:g} and below more than half of what there is to learn is lost."
    return ""


def _still_rising(result: StudyResult, gains: Sequence[float]) -> bool:
    """Return whether the score at the largest ε is well below that of a linear model without privacy."""
    reference = _gain(result, result.cell("non-private", None))
    return reference - gains[-1] > _LEFT * max(reference, 0.0)


def _useless(result: StudyResult) -> str:
    """Return the sentence for a comparison in which no private model is useful."""
    private = [cell for cell in result.cells if cell.epsilon is not None and not CANDIDATES[cell.mechanism].claimed]
    last = max(private, key=lambda cell: _gain(result, cell))
    than = _constant(result) if result.task.classes else "predicting the mean"
    reached = f"{score_in_words(result, last)} at best"
    if result.task.classes == 0 and last.mean < 0:
        reached = "R² below 0"
    elif _gain(result, last) >= _LEAST:
        reached += ", which chance may give in so few splits of so few records"
    what = f" for {result.target!r}" if result.target else ""
    start = (
        f"Do not use a private model of these records{what}: none here, at any ε up to {max(result.study.epsilons):g}, is "
        f"clearly better than {than} ({reached})."
    )
    constant = result.cell("constant", None)
    learnt = [cell for cell in result.references if cell.mechanism != "constant" and beats(cell, constant, result)]
    if not learnt:
        return f"{start} Nor is one without privacy: nothing here shows that these columns say anything of it."
    best = max(learnt, key=lambda cell: cell.mean)
    name = "Gradient boosting" if best.mechanism == "boosting" else "A linear model"
    return (
        f"{start} {name} without privacy reaches {score_in_words(result, best)}: there is something to learn, but not at these ε "
        f"from {result.records:,} records. More records, fewer columns or a larger ε may help."
    )


def _remarks(result: StudyResult, chosen: Cell | None) -> list[str]:
    """Return the remarks that a reader needs beside the advice."""
    said: list[str] = []
    if chosen is not None and result.task.classes == 2:
        said += _found(result, chosen)
    if chosen is not None and not CANDIDATES[chosen.mechanism].command and chosen.mechanism != DEFAULT:
        said.append("The command line has no option for it.")
    if chosen is not None and chosen.mechanism != DEFAULT and DEFAULT in result.keys:
        own = result.cell(DEFAULT, chosen.epsilon)
        said.append(
            f"The default reaches {score_in_words(result, own)} at the same ε. Mechanisms other than the default took the number "
            "of records as public: state it (`--public-size`) only if it may be."
        )
    if result.study.repeats < _FEWEST:
        said.append("So few splits do not tell a lead from chance: repeat on ten or more (`--repeats 10`).")
    if result.task.unit != RECORD:
        said.append("Splits are by person: nobody's rows are on both sides.")
    if result.copied >= _COPIED:
        said.append(_copies(result, chosen))
    return said


def _found(result: StudyResult, chosen: Cell) -> list[str]:
    """Return the sentence on recall and precision for the rarer of two classes."""
    found, right = chosen.measured("recall"), chosen.measured("precision")
    if math.isnan(found):
        return []
    label, threshold = result.rarer, chosen.measured("threshold")
    flags = "it flags none" if math.isnan(right) else f"of 100 that it flags, {100 * right:.0f} are"
    said = [
        f"Of 100 records with {label!r} it finds {100 * found:.0f}, and {flags}, where it flags a probability above "
        f"{threshold:.2g}, the share of {label!r} among the training records."
    ]
    usual = chosen.measured("recall at 0.5")
    if usual < found / 2:
        said.append(
            f"Answers of `dperm predict` go by 0.5, and find {100 * usual:.0f} of 100: {label!r} is rare "
            f"({100 * result.share:.2g} % of records). Decide by its probabilities, or let errors on it count "
            "for more (`--class-weight`)."
        )
    return said


def _copies(result: StudyResult, chosen: Cell | None) -> str:
    """Return the sentence on rows that stand on both sides of the split, and on their effect on scores."""
    said = (
        f"{100 * result.copied:.2g} % of held-out records have a copy among the training records, alike in every column and the "
        "target. Where copies are one person's rows or were made by joining tables, scores flatter a model that memorises: "
        "declare a unit in the schema, or drop them. Where columns take few values, they are chance."
    )
    shown = [cell for cell in (chosen, *result.references) if cell is not None and cell.mechanism != "constant"]
    found = [(cell, cell.measured(WITHOUT_COPIES)) for cell in shown]
    pairs = [
        f"{title_of(cell.mechanism)} {value_text(result.measure, alone)} (all: {score_text(result, cell)[0]})"
        for cell, alone in found
        if not math.isnan(alone)
    ]
    return said + (f" On held-out records without a copy, {result.metric} is: {'; '.join(pairs)}." if pairs else "")
