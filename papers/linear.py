"""What the papers on linear models share: paired splits, one training, results as lines, curves."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from dperm.data import Dataset, load
from dperm.mechanisms import Budget, Method
from dperm.objectives import LinearObjective, Logistic, Records, RegularisedSum, Task
from dperm.privacy import Relation
from dperm.release import Channel, spend_log
from dperm.solvers import minimise, minimise_softmax

__all__ = ["Cell", "Results", "Split", "half_width", "reference", "split", "train"]

Array = NDArray[np.float64]

_REFERENCE = 1e-2  # Λ of models without privacy, in sums: enough to make them unique
_TEST_SHARE = 0.2


@dataclass(frozen=True)
class Cell:
    """One method at one ε on one data set, cut to `records`, if not None. `method` is its name in this experiment."""

    dataset: str
    method: str
    epsilon: float
    records: int | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset},{self.records or 0:06d},{self.method},{self.epsilon:08.4f}"


class Results:
    """Cells with what their repeats gave, one line each, in a file that is sorted by name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, cell: Cell) -> dict[str, Any] | None:
        return self._read().get(cell)

    def save(self, cell: Cell, result: dict[str, Any]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with FileLock(self._path.with_suffix(".lock")):
            found = self._read()
            found[cell] = {**result, "cell": asdict(cell)}
            beside = self._path.with_suffix(".part")
            beside.write_text("".join(json.dumps(found[each]) + "\n" for each in sorted(found, key=lambda each: each.name)))
            beside.replace(self._path)

    def _read(self) -> dict[Cell, dict[str, Any]]:
        if not self._path.exists():
            return {}
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return {Cell(**line["cell"]): line for line in lines}


@dataclass(frozen=True)
class Split:
    """Rows and targets (class numbers) for training and for testing."""

    train: tuple[Array, NDArray[np.intp]]
    test: tuple[Array, NDArray[np.intp]]
    classes: int


@functools.lru_cache(maxsize=4)
def _loaded(name: str) -> Dataset:
    return load(name)


@functools.lru_cache(maxsize=2)
def split(name: str, repeat: int, records: int | None = None) -> Split:
    """80 to 20 at random, the same for every method of a repeat; of `records` drawn beforehand."""
    data = _loaded(name)
    rng = np.random.default_rng([repeat, 17])
    order = rng.permutation(len(data))[:records]
    rows, numbers = data.features[order].astype(float), np.searchsorted(np.array(sorted(data.classes)), data.targets[order])
    cut = round(_TEST_SHARE * len(order))
    return Split((rows[cut:], numbers[cut:]), (rows[:cut], numbers[:cut]), len(data.classes))


def task(parts: Split, relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> Task:
    rows, _ = parts.train
    return Task(
        loss=Logistic(), features=rows.shape[1], classes=parts.classes, intercept_scale=0.5, relation=relation,
        public_size=len(rows),
    )  # fmt: skip


def train(parts: Split, method: Method, epsilon: float, relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> dict[str, Any]:
    """Accuracy in % on the test part, mean training loss, and what the certificate says. δ = 1/n."""
    rows, numbers = parts.train
    chosen = task(parts, relation)
    mechanism, objective = method.build(chosen, Budget(1 / len(rows), epsilon))
    records = objective.records(rows, chosen.targets(numbers))
    with spend_log(Path(__file__).parent / "spend.db"):
        release = mechanism.release(objective, records, Channel.open(label="papers"))
    return {
        **scores(objective, parts, chosen, release.theta),
        "certified": release.certificate.epsilon,
        "status": release.certificate.status,
        "private": {name: len(values) for trace in release.private for name, values in trace.items()},
    }


def reference(parts: Split) -> dict[str, Any]:
    """The model without privacy."""
    chosen = task(parts)
    objective = chosen.objective(joint=True, strong_convexity=_REFERENCE)
    rows, numbers = parts.train
    records = objective.records(rows, chosen.targets(numbers))
    if objective.outputs > 1:
        theta = minimise_softmax(objective, records)
    else:
        theta = minimise(RegularisedSum(objective, records), 1e-6).theta
    return scores(objective, parts, chosen, theta)


def scores(objective: LinearObjective, parts: Split, chosen: Task, theta: Array) -> dict[str, Any]:
    rows, numbers = parts.test
    predicted = _predictions(objective, objective.records(rows, chosen.targets(numbers)), theta)
    answers = (predicted > 0).astype(int) if predicted.ndim == 1 else predicted.argmax(axis=1)
    records = objective.records(parts.train[0], chosen.targets(parts.train[1]))
    losses = objective.loss.value(_predictions(objective, records, theta), records.targets)
    return {"accuracy": 100 * float(np.mean(answers == numbers)), "loss": float(losses.mean())}


def _predictions(objective: LinearObjective, records: Records, theta: Array) -> Array:
    return np.concatenate([objective.predict(theta, batch) for batch in records.batches()])


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan
    return float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))


def _band(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the mean; of fewer than four values all of them, since an interval would say nothing."""
    if len(values) < 4:
        return min(values), max(values)
    wide = half_width(values)
    return float(np.mean(values)) - wide, float(np.mean(values)) + wide


def quietly(run: Any, *arguments: Any) -> Any:
    """Without warnings about small budgets and deltas, which these experiments choose on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return run(*arguments)


def curves(
    file: Path,
    panels: Iterable[tuple[str, dict[str, list[tuple[float, list[float]]]], float | None]],
    label: str,
    claimed: set[str],
    *,
    logarithmic: bool = False,
) -> None:
    """One panel a data set: mean and 95 % interval (of fewer than four repeats the range) over ε of each method; certified ones
    solid, claimed ones dashed and hollow. `panels`: (title, {method: [(ε, values of the repeats)]}, reference without privacy).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(panels)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.5 + 3.9 * columns, 3.3 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    names = list(dict.fromkeys(name for _, lines, _ in panels for name in lines))
    for axis, (title, lines, without) in zip(axes.flat, panels, strict=False):
        for name, points in lines.items():
            colour = f"C{names.index(name)}"
            x = [epsilon for epsilon, _ in points]
            y = np.array([np.mean(values) for _, values in points])
            low, high = np.array([_band(values) for _, values in points]).T
            style = {"linestyle": "--", "markerfacecolor": "none"} if name in claimed else {"linestyle": "-"}
            axis.plot(x, y, color=colour, marker="o", markersize=4, label=name, **style)
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if without is not None:
            axis.axhline(without, color="black", linewidth=1, linestyle=":", label="without privacy")
        axis.set(title=title, xscale="log", xlabel="ε")
        if logarithmic:
            axis.set_yscale("symlog", linthresh=0.01)
    axes[0, 0].set_ylabel(label)
    handles = {text: line for axis in axes.flat for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(file, dpi=110)
    plt.close(figure)
