"""ε of a mechanism, or of everything in the spend log."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json
from dperm.jobs import accounting
from dperm.jobs.options import stated_relation


@dataclass(frozen=True, kw_only=True)
class AccountOptions(accounting.AccountingOptions):
    log: Annotated[bool, "Compose everything in the spend log instead."] = False
    label: Annotated[str | None, "With --log: only charges with this label."] = None
    compare: Annotated[bool, "With --noise: ε by other formulas, too."] = False
    correlated: Annotated[bool, "With --noise and --rate: strategies for correlated noise at the same ε, too."] = False
    output: Annotated[Path | None, "With --compare or --correlated: page to draw them on."] = None
    as_json: JsonFlag = False


def account(asked: AccountOptions) -> None:
    """ε of a mechanism at a given δ.

    \b
    Examples:
      dperm account --noise 1.1 --rate 0.01 --steps 5000
      dperm account --noise 4 --rate 0.01 --steps 1000 --compare -o ladder.html
      dperm account --noise 1 --rate 0.01 --steps 2000 --correlated -o strategies.html
      dperm account --log
    """
    from dperm._rounding import upward

    if (asked.event is not None) + (asked.noise is not None) + asked.log != 1:
        raise ValueError("Expected one of --noise, --event and --log.")
    if (asked.compare or asked.output is not None) and asked.noise is None:
        raise ValueError("Expected --noise with --compare: formulas are for Gaussian noise on Poisson samples.")
    if asked.compare and asked.correlated:
        raise ValueError("Expected --compare or --correlated, one at a time.")
    if asked.output is not None and not (asked.compare or asked.correlated):
        raise ValueError("Expected --compare or --correlated with --output.")
    if asked.log or asked.compare or asked.correlated:
        (_tell_log if asked.log else _compare if asked.compare else _correlate)(asked)
        return
    if asked.label is not None:
        raise ValueError("Expected --log with --label: only charges have labels.")
    found = accounting.account(asked)
    if asked.as_json:
        value = None if found.epsilon == float("inf") else found.epsilon
        what = {"accountant": found.accountant} if found.epsilon is not None else {"claim": found.claim}
        say_json({"epsilon": value, "delta": asked.delta, **what, "relation": found.relation})
    elif found.epsilon is None:
        say(f"No ε: claimed, not certified. {found.claim}")
    else:
        say(f"ε = {upward(found.epsilon, 6)} at δ = {asked.delta:g} ({found.accountant}, {found.relation})")


def _compare(asked: AccountOptions) -> None:
    from dperm.report.summary import ladder_table

    page = None if asked.output is None else reserved(asked.output)
    rungs, noise, delta = asked.rungs, asked.noise or 0.0, asked.delta
    if asked.as_json:
        say_json({"delta": delta, "rungs": [asdict(rung) for rung in rungs]})
    else:
        plan = f"{asked.steps:,} releases of noise {noise:g}"
        plan += f", each on a sample at rate {asked.rate:g}" if asked.rate < 1 else ""
        ladder_table(rungs, f"{plan}: ε at δ = {delta:g}")
    if page is not None:
        from dperm.report.ladder import ladder_page

        page.write(ladder_page(noise, asked.rate, asked.steps, delta, stated_relation(asked.relation), rungs))
        if not asked.as_json:
            say(f"Page written to {asked.output}.")


def _correlate(asked: AccountOptions) -> None:
    from dperm._rounding import upward
    from dperm.report.summary import strategies_table

    page = None if asked.output is None else reserved(asked.output)
    found, epsilon = asked.strategies, accounting.account(asked).epsilon
    assert epsilon is not None
    if asked.as_json:
        say_json({"epsilon": epsilon, "delta": asked.delta, "strategies": [asdict(each) for each in found]})
    else:
        run = f"{asked.steps:,} steps, each of {100 * asked.rate:g} % of the records, momentum {asked.momentum:g}"
        strategies_table(found, f"{run}: ε = {upward(epsilon, 4)} at δ = {asked.delta:g}")
    if page is not None:
        from dperm.report.strategies import EPSILONS, strategies_page

        page.write(strategies_page(asked, epsilon, found, asked.strategies_over(EPSILONS)))
        if not asked.as_json:
            say(f"Page written to {asked.output}.")


def _tell_log(asked: AccountOptions) -> None:
    from dperm._rounding import upward
    from dperm.release import SpendLog

    log, delta, label = SpendLog.current(), asked.delta, asked.label
    charges, found = log.charges(label), accounting.totals(log, delta, label)
    if asked.as_json:
        shown = {str(total): total.epsilon if total.epsilon < float("inf") else None for total in found}
        say_json({"log": str(log.where), "charges": len(charges), "delta": delta, "epsilon": shown})
        return
    say(f"{log.where}: {len(charges)} charges" + (f" labelled {label!r}" if label else ""))
    for name, count in sorted(Counter(charge.label for charge in charges).items()):
        say(f"  {count:6d}  {name or '(no label)'}")
    if exposed := sum(not charge.private for charge in charges):
        say(f"{exposed} of them had a fixed seed and were not private at all; below they count as if their noise had been fresh.")
    for total in found:
        if total.certified < total.charges:
            others = total.certified_epsilon
            rest = "" if others is None else f": ε = {upward(others, 6)} at δ = {delta:g}"
            say(
                f"{total.charges - total.certified} of the {total.charges} charged under {total} are only claimed and have no ε; "
                f"the {total.certified} others, as if on the same records{rest}"
            )
            continue
        which = f"The {total.charges} charged under {total}, as if on the same records"
        if total.epsilon < float("inf"):
            say(f"{which}: ε = {upward(total.epsilon, 6)} at δ = {delta:g}")
        elif total.promised >= delta:
            spent = f"their promises alone spend δ = {total.promised:g}; ask with a larger --delta."
            say(f"{which}: no finite ε at δ = {delta:g}: {spent}")
        else:
            say(f"{which}: no finite ε at δ = {delta:g}: at least one of them protects next to nothing.")
