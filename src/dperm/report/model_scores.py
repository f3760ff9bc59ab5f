"""Released scores of a model, as its card shows them: each with its interval, and in words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from dperm._json import foreign, unique_names
from dperm._rounding import upward
from dperm.privacy import Certificate
from dperm.report.judging import MIDDLE_OFF, RANKS_OFF

#: what each score of `dperm evaluate` is called on the card, in the order in which they stand there
_TITLES = {
    "accuracy": "Right answers",
    "most frequent class": "Right answers, were the most frequent one always given",
    "balanced accuracy": "Right answers, each label counted alike (balanced accuracy)",
    "AUC": "Pairs of a record of each label that are ranked rightly (AUC)",
    "R²": "Share of the spread that is explained (R²)",
    "mean absolute error": "Mean absolute error, in units of the target",
    "root mean squared error": "Root mean squared error, in units of the target",
    "mean error in ranks": "Mean error in ranks",
    "mean error in ranks, of the middle rank": "Mean error in ranks, were the middle rank always given",
}
SHARES = ("accuracy", "most frequent class", "balanced accuracy", "AUC")
_ERRORS = ("mean absolute error", "root mean squared error", RANKS_OFF, MIDDLE_OFF)
_LEAST_WIDTH = 0.001  # of an interval, as it is printed

HIDDEN = "hidden by the noise"


@dataclass(frozen=True)
class ModelScores:
    """What `dperm evaluate --test-data released` found of one model: noisy numbers that were charged.

    Attributes
    ----------
    records : int
        About how many test records, or persons, there were.
    counted : str
        "records" or "persons".
    scores, half_widths : dict of str to float or None
        Each score, recalls among them as "recall of LABEL", and half of its 95 % interval for the noise alone. None: hidden by
        the noise, or, of a half-width, not known.
    certificate : Certificate
        What the scores cost.
    model_sha256 : str
        The SHA-256 of the model's file that was evaluated.
    trained_on : bool
        Whether the records are known to be those that the model was trained on.
    """

    records: int
    counted: str
    scores: dict[str, float | None]
    certificate: Certificate
    half_widths: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    model_sha256: str = ""
    trained_on: bool = False

    @classmethod
    def from_json(cls, text: str, *, largest_cost: float = 50.0) -> ModelScores:
        """From the file that `dperm evaluate` writes. ValueError for anything else: for exact scores of private records, for
        scores whose certificate states less than its event costs, and for those made with a fixed seed."""
        with foreign("Expected the scores of a released evaluation, as dperm evaluate --test-data released writes them"):
            table = json.loads(text, object_pairs_hook=unique_names)
            if table.get("test_data") != "released":
                raise ValueError(f"these are of {table.get('test_data')!r} test data, without noise")
            scores = {str(name): _number(value) for name, value in table["scores"].items()}
            scores |= {f"recall of {name}": _number(value) for name, value in table["recalls"].items()}
            widths = {str(name): _number(value) for name, value in table["half_widths"].items()}
            certificate = Certificate.from_json(json.dumps(table["certificate"]), largest_cost=largest_cost)
            certificate.verify()
            if certificate.epsilon is None or not certificate.private:
                raise ValueError("their certificate states no guarantee, so that they may not be shown")
            records, counted = int(table["records"]), str(table["of"])
            sha256, trained_on = str(table.get("model_sha256", "")), table.get("trained_on", False) is not False
            return cls(records, counted, scores, certificate, widths, sha256, trained_on)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(title, value with its interval) of each score, as a card's table shows them."""
        shown = [(title, self._text(name)) for name, title in _TITLES.items() if name in self.scores]
        found = [name for name in self.scores if name.startswith("recall of ")]
        return shown + [(f"Records with {_quoted(name)} that it recognises", self._text(name)) for name in found]

    @property
    def sentences(self) -> list[str]:
        """What the scores say, in plain words; a difference that the noise may have made is not taken for one, and scores of
        records that the model was trained on are not taken for those of new ones."""
        if self.trained_on:
            return [
                f"Not known for new {self.counted}: the scores are of the very table that the model was trained on, which it "
                "suits better than others."
            ]
        return list(filter(None, (self._of_labels(), self._of_ranking(), self._of_numbers(), self._of_ranks())))

    def _known(self, name: str) -> tuple[float, float] | None:
        """(score, half-width); None where there is none, or the noise hides it."""
        value, width = self.scores.get(name), self.half_widths.get(name)
        return None if value is None or width is None or hidden(name, value, width) else (value, width)

    def _text(self, name: str) -> str:
        value, width = self.scores[name], self.half_widths.get(name)
        if value is None or hidden(name, value, width):
            return HIDDEN
        share = name in SHARES or name.startswith("recall of ")
        scale = 100 if share else 1
        if width is None:
            return f"{_digits(scale * value, 0.0)}{' %' if share else ''}"
        least = max(scale * width, _LEAST_WIDTH)
        more = half_width(scale * width) if scale * width < _LEAST_WIDTH else f"± {_digits(least, least)}"
        return f"{_digits(scale * value, least)} {more}{' %' if share else ''}"

    @property
    def about(self) -> str:
        """How many records there were, or persons, and of which kind: "104 ± 70 test records"."""
        kind = "training" if self.trained_on else "test"
        return f"{counted(self.records, self.half_widths.get('records'))} {kind} {self.counted}"

    def _of_labels(self) -> str:
        right, frequent = self._known("accuracy"), self._known("most frequent class")
        gain = self._known("above the most frequent class")
        if right is None or frequent is None or gain is None:
            return "How often its answers are right is hidden by the noise." if "accuracy" in self.scores else ""
        constant = f"the most frequent answer is for {100 * frequent[0]:.1f}"
        numbers = f"It is right for about {100 * right[0]:.1f} of 100, and {constant}."
        than = "always giving the most frequent answer"
        return f"{_compared(*gain, than)} {numbers}"

    def _of_ranking(self) -> str:
        if (auc := self._known("AUC")) is None:
            return ""
        found = f"Of two records with different labels it ranks {100 * auc[0]:.1f} of 100 pairs rightly; guessing ranks 50."
        if auc[0] - 0.5 > auc[1]:
            return found
        return found + (" It ranks worse than guessing." if 0.5 - auc[0] > auc[1] else " This cannot be told from guessing.")

    def _of_numbers(self) -> str:
        if (r2 := self._known("R²")) is None:
            return "How much of the spread it explains is hidden by the noise." if "R²" in self.scores else ""
        than = "always giving the mean of the test records"
        if r2[0] > r2[1]:
            return f"{_compared(*r2, than)} It explains about {100 * r2[0]:.0f} % of the spread (R² = {_digits(*r2)})."
        below = "below" if r2[0] < -r2[1] else "near"
        return f"{_compared(*r2, than)} R² is {below} 0: {_digits(*r2)}."

    def _of_ranks(self) -> str:
        off, middle = self._known("mean error in ranks"), self._known("mean error in ranks, of the middle rank")
        if off is None or middle is None:
            return ""
        numbers = f"It is off by {_digits(*off)} ranks on average, and the middle rank by {_digits(*middle)}."
        return _compared(middle[0] - off[0], off[1] + middle[1], "always giving the middle rank") + " " + numbers

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "records": self.records,
            "of": self.counted,
            "scores": self.scores,
            "half_widths": self.half_widths,
            "trained_on": self.trained_on,
            "in_words": self.sentences,
            "certificate": json.loads(self.certificate.to_json()),
        }

    @property
    def cost(self) -> str:
        """What the scores cost, in words."""
        return f"ε = {upward(self.certificate.epsilon or 0.0)} at δ = {upward(self.certificate.delta, 2)}"


def hidden(name: str, value: float, width: float | None) -> bool:
    """Whether a score is an error whose half-width is as large as itself: the noise may have made all of it."""
    return name in _ERRORS and width is not None and width >= value


def half_width(width: float) -> str:
    """Half of an interval, with a sign in front: "± 0.024", or "± under 0.001"."""
    return f"± under {_LEAST_WIDTH}" if width < _LEAST_WIDTH else f"± {width:.3f}"


def counted(records: int, width: float | None) -> str:
    """A noisy number of records with half of its interval: "104 ± 70"."""
    return f"{records:,}" if width is None else f"{records:,} ± {math.ceil(width):,}"


def _compared(gain: float, width: float, than: str) -> str:
    """A verdict on a score that lies `gain` above what a constant answer reaches, within ± `width` by the noise."""
    if gain > width:
        return f"Better than {than}."
    return f"Worse than {than}." if gain < -width else f"Not told apart from {than}: the noise of the scores is as large."


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a score is {value!r:.40}")
    return float(value)


def _quoted(name: str) -> str:
    return f"“{name.removeprefix('recall of ')}”"


def _digits(value: float, width: float) -> str:
    """A number to the digit in which its half-width begins, and one more."""
    if width <= 0:
        return f"{value:.4g}"
    places = 1 - math.floor(math.log10(width))
    return f"{value:,.{places}f}" if places > 0 else f"{round(value, places):,.0f}"
