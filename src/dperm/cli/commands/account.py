"""ε of a mechanism, or of everything in the spend log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.files import reserved
from dperm.cli.options import JsonFlag
from dperm.cli.printing import say, say_json
from dperm.jobs.files import certificate_at, event_at
from dperm.jobs.options import Delta, Relation, stated_relation


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: standard deviation ÷ sensitivity.")] = None
    rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = 1.0
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 1
    delta: Delta = 1e-5
    relation: Relation = "add_or_remove_one"
    event: Annotated[Path | None, typer.Option(help="A JSON event or certificate to account for instead.")] = None
    log: Annotated[bool, typer.Option("--log", help="Compose everything in the spend log instead.")] = False
    label: Annotated[str | None, typer.Option(help="With --log: only charges with this label.")] = None
    compare: Annotated[bool, typer.Option("--compare", help="With --noise: ε by other formulas, too.")] = False
    output: Annotated[Path | None, typer.Option("--output", "-o", help="With --compare: page to draw them on.")] = None
    as_json: JsonFlag = False


def account(asked: AccountOptions) -> None:
    """ε of a mechanism at a given δ.

    \b
    Examples:
      dperm account --noise 1.1 --rate 0.01 --steps 5000
      dperm account --noise 4 --rate 0.01 --steps 1000 --compare -o ladder.html
      dperm account --log
    """
    from dperm import _validate as check
    from dperm._rounding import upward
    from dperm.privacy import Gaussian, PoissonSampled, SelfComposed
    from dperm.privacy.accountants.accounting import best_epsilon
    from dperm.privacy.events import relation_of

    if (asked.event is not None) + (asked.noise is not None) + asked.log != 1:
        raise ValueError("Expected one of --noise, --event and --log.")
    if (asked.compare or asked.output is not None) and asked.noise is None:
        raise ValueError("Expected --noise with --compare: formulas are for Gaussian noise on Poisson samples.")
    if asked.output is not None and not asked.compare:
        raise ValueError("Expected --compare with --output.")
    if asked.log:
        _account_log(asked.delta, asked.label, asked.as_json)
        return
    if asked.label is not None:
        raise ValueError("Expected --log with --label: only charges have labels.")
    if asked.noise is not None:
        check.positive("--noise", asked.noise)
        check.fraction("--rate", asked.rate, one=True)
        check.integer("--steps", asked.steps)
    if asked.compare:
        _compare(asked.noise or 0.0, asked.rate, asked.steps, asked.delta, asked.relation, asked.output, asked.as_json)
        return
    if asked.event is not None:
        certificate = certificate_at(asked.event)
        if certificate is not None and certificate.epsilon is None:
            shown = {"epsilon": None, "claim": certificate.claim, "delta": asked.delta, "relation": certificate.relation}
            if asked.as_json:
                say_json(json.dumps(shown))
            else:
                say(f"No ε: claimed, not certified. {certificate.claim}")
            return
        mechanism = event_at(asked.event) if certificate is None else certificate.event
    else:
        mechanism = SelfComposed(
            PoissonSampled(asked.rate, Gaussian(asked.noise or 0.0, stated_relation(asked.relation))), asked.steps
        )
    value, accountant = best_epsilon(mechanism, asked.delta)
    if asked.as_json:
        shown = value if value < float("inf") else None
        say_json(
            json.dumps({"epsilon": shown, "delta": asked.delta, "accountant": accountant, "relation": relation_of(mechanism)})
        )
    else:
        say(f"ε = {upward(value, 6)} at δ = {asked.delta:g} ({accountant}, {relation_of(mechanism)})")


def _compare(noise: float, rate: float, steps: int, delta: float, relation: str, output: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from dperm.privacy.accountants.closed_forms import ladder
    from dperm.report.summary import ladder_table

    page = None if output is None else reserved(output)
    rungs = ladder(noise, rate, steps, delta, stated_relation(relation))
    if as_json:
        say_json(json.dumps({"delta": delta, "rungs": [asdict(rung) for rung in rungs]}))
    else:
        plan = f"{steps:,} releases of noise {noise:g}" + (f", each on a sample at rate {rate:g}" if rate < 1 else "")
        ladder_table(rungs, f"{plan}: ε at δ = {delta:g}")
    if page is not None:
        from dperm.report.ladder import ladder_page

        page.write(ladder_page(noise, rate, steps, delta, stated_relation(relation), rungs))
        if not as_json:
            say(f"Page written to {output}.")


def _kind(relation: Any, persons: bool) -> str:
    return f"{relation}, of persons" if persons else str(relation)


def _account_log(delta: float, label: str | None, as_json: bool) -> None:
    from dperm._rounding import upward
    from dperm.privacy import ApproximateDP, Composed, epsilon
    from dperm.privacy.events import leaves, relation_of
    from dperm.release import SpendLog

    log = SpendLog.current()
    charges = log.charges(label)
    totals = {
        (relation, persons): value
        for persons in (False, True)
        for relation, value in log.total(delta, label, persons=persons).items()
    }
    if as_json:
        shown = {_kind(*key): value if value < float("inf") else None for key, value in totals.items()}
        say_json(json.dumps({"log": str(log.where), "charges": len(charges), "delta": delta, "epsilon": shown}))
        return
    say(f"{log.where}: {len(charges)} charges" + (f" labelled {label!r}" if label else ""))
    labels: dict[str, int] = {}
    for charge in charges:
        labels[charge.label] = labels.get(charge.label, 0) + 1
    for name, count in sorted(labels.items()):
        say(f"  {count:6d}  {name or '(no label)'}")
    if exposed := sum(not charge.private for charge in charges):
        say(f"{exposed} of them had a fixed seed and were not private at all; below they count as if their noise had been fresh.")
    for (relation, persons), value in totals.items():
        mine = [charge for charge in charges if relation_of(charge.event) is relation and charge.persons == persons]
        certified = [charge.event for charge in mine if charge.certified]
        spent = sum(
            leaf.delta * count for event in certified for leaf, count in leaves(event).items() if isinstance(leaf, ApproximateDP)
        )
        if len(certified) < len(mine):
            rest = f": ε = {upward(epsilon(Composed(tuple(certified)), delta), 6)} at δ = {delta:g}" if certified else ""
            say(
                f"{len(mine) - len(certified)} of the {len(mine)} charged under {_kind(relation, persons)} are only claimed and "
                f"have no ε; the {len(certified)} others, as if on the same records{rest}"
            )
            continue
        which = f"The {len(mine)} charged under {_kind(relation, persons)}, as if on the same records"
        if value < float("inf"):
            say(f"{which}: ε = {upward(value, 6)} at δ = {delta:g}")
        elif spent >= delta:
            say(f"{which}: no finite ε at δ = {delta:g}: their promises alone spend δ = {spent:g}; ask with a larger --delta.")
        else:
            say(f"{which}: no finite ε at δ = {delta:g}: at least one of them protects next to nothing.")
