"""How many runs fit into a budget: planned and composed exactly, by filters, and by a filter where runs stop early and settle.

Writes benchmarks/results/settlement.md. `python benchmarks/settlement.py` (a minute; nothing is trained)
"""

from __future__ import annotations

import math
from pathlib import Path

from dperm.privacy import Event, Gaussian, PoissonSampled, SelfComposed, epsilon
from dperm.privacy.events import leaves
from dperm.release.ledger import GdpFilter, RenyiFilter, Rule
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
EPSILON, DELTA = 4.0, 1e-6
ORDERS = (4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0, 10.0, 12.0)
STOPPED = 0.5  # of the steps, where runs stop early


def sampled(rate: float, noise: float, steps: int) -> Event:
    return SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps)


RUNS: dict[str, Event] = {
    "DP-SGD, rate 0.02, noise 3, 1,000 steps": sampled(0.02, 3.0, 1000),
    "DP-SGD, rate 0.1, noise 8, 500 steps": sampled(0.1, 8.0, 500),
    "DP-SGD, rate 0.01, noise 1, 1,000 steps": sampled(0.01, 1.0, 1000),
    "DP-SGD, rate 0.005, noise 0.8, 2,000 steps": sampled(0.005, 0.8, 2000),
    "full batches, noise 60, 100 steps": SelfComposed(Gaussian(60.0), 100),
}


def fitting(rule: Rule, event: Event) -> int:
    cost = rule.cost(event)
    return math.floor(min(rule.limits[kind] / amount for kind, amount in cost.items() if amount))


def planned(event: Event) -> int:
    count = 0
    while epsilon(SelfComposed(event, count + 1), DELTA) <= EPSILON:
        count += 1
    return count


def fitting_where_stopped(rule: Rule, event: Event) -> int:
    """Runs that stop early and settle: each must find room for all of its steps when it begins."""
    ((leaf, steps),) = leaves(event).items()
    whole, taken = rule.cost(event), rule.cost(SelfComposed(leaf, round(STOPPED * steps)))
    room = min((rule.limits[kind] - amount) / taken[kind] for kind, amount in whole.items() if amount)
    return max(0, 1 + math.floor(room))


def row(name: str, event: Event) -> str:
    renyi, gdp = RenyiFilter.of(EPSILON, DELTA), GdpFilter.of(EPSILON, DELTA)
    counts = {order: fitting(RenyiFilter.of(EPSILON, DELTA, order=order), event) for order in ORDERS}
    best = max(counts, key=lambda order: (counts[order], -abs(order - renyi.order)))
    chosen = RenyiFilter.of(EPSILON, DELTA, order=best)
    cells = [
        name,
        f"{epsilon(event, DELTA):.2f}",
        planned(event),
        fitting(gdp, event),
        fitting(renyi, event),
        f"{counts[best]} ({best:g})",
        fitting_where_stopped(chosen, event),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    order = RenyiFilter.of(EPSILON, DELTA).order
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    head = [
        "# Budgets by a filter, exact composition, and settlements",
        "",
        f"How many runs fit into a budget of ε = {EPSILON:g} at δ = {DELTA:g}; nothing is trained. The last column is of runs",
        f"that stop after {STOPPED:.0%} of their steps and settle, one after another, by the filter of the best order: each",
        "finds room for all of its steps when it begins. Written by `python benchmarks/settlement.py`.",
        "",
        f"| run | ε of one, exactly | planned | GDP filter | Rényi filter, order {order:g} | best order | stopped and settled |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    text = "\n".join([*head, *(row(name, event) for name, event in RUNS.items()), "", f"{facts}.", ""])
    (RESULTS / "settlement.md").write_text(text, encoding="utf-8")
    print(text)
