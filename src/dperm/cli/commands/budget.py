"""Budgets of data sets, and the spend log that they lie in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.shared import Delta, JsonFlag, Relation, json_table, probe_writable, say, stated_relation

if TYPE_CHECKING:
    from dperm.release.ledger import Account

__all__ = ["register"]


def create(
    label: Annotated[str, typer.Argument(help="The data set's name, as certificates and charges have it.")],
    epsilon: Annotated[float, typer.Option(help="ε for all releases together.")],
    delta: Delta = 1e-6,
    relation: Relation = "add_or_remove_one",
    persons: Annotated[bool, typer.Option("--persons", help="It protects persons with all their rows.")] = False,
    owner: Annotated[str, typer.Option(help="Whom to ask when it is spent.")] = "",
    expires: Annotated[str, typer.Option(help="The last day, 2027-12-31.")] = "",
    alert: Annotated[float, typer.Option(help="Share of ε from which on a charge warns.")] = 0.8,
    order: Annotated[float | None, typer.Option(help="Of the Rényi filter [default: the one that suits Gaussian noise].")] = None,
    mass: Annotated[float | None, typer.Option(help="Part of δ for releases that have a δ of their own [default: half].")] = None,
) -> None:
    """Give a data set a budget, or another one. From then on the spend log takes no charge that exceeds it, and none of a data
    set without a budget. What was charged under the name before counts.

    \b
    Example:
      dperm budget create stays --epsilon 4 --delta 1e-6 --owner "Data Protection" --expires 2027-12-31
    """
    from dperm.release import SpendLog
    from dperm.release.ledger import Budget

    settings: dict[str, Any] = {"order": order, "mass": mass, "persons": persons, "owner": owner, "expires": expires}
    budget = Budget.of(label, epsilon, delta, relation=stated_relation(relation), alert=alert, **settings)
    _say(SpendLog.current().create_budget(budget))
    say("The same records under another name are not counted: whoever names data sets answers for that.")


def show(
    label: Annotated[str | None, typer.Argument(help="One data set [default: all].")] = None, as_json: JsonFlag = False
) -> None:
    """What the budgets are, and what is left of them."""
    from dperm.release import SpendLog

    log = SpendLog.current()
    found = [account for account in log.accounts_held() if label in (None, account.budget.label)]
    if label is not None and not found:
        raise ValueError(f"Expected a data set with a budget in {log.where}, got {label!r}.")
    if as_json:
        told = [{**each.budget.to_dict(), "spent": each.epsilon, "left": each.left} for each in found]
        say(json.dumps({"log": log.where, "budgets": told}))
        return
    say(f"{log.where}: {len(found)} budgets.")
    for account in found:
        _say(account)


def history(
    label: Annotated[str | None, typer.Argument(help="One data set [default: all].")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Page that draws ε over time.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Every charge and budget, oldest first. With -o a page that draws what was spent over time."""
    from dperm.release import SpendLog

    if output is not None:
        from dperm.report import write_atomically
        from dperm.report.budgets import budgets_page

        probe_writable(output)
        write_atomically(output, budgets_page(SpendLog.current(), None if label is None else [label]))
    entries = SpendLog.current().history(label)
    if as_json:
        say(json.dumps(entries))
        return
    for entry in entries:
        what = f"budget ε = {entry['budget']['epsilon']:g}" if entry["kind"] == "budget" else entry["mechanism"]
        marks = [name for name, holds in (("claimed", entry.get("claimed")), ("seeded", not entry.get("private", True))) if holds]
        say(f"{entry['number']:6d}  {entry['time']}  {entry.get('label') or '(no label)':20s}  {what}{' '.join(['', *marks])}")


def import_log(source: Annotated[Path, typer.Argument(help="A log of lines, spend.jsonl.")]) -> None:
    """Read in a log of an earlier version. That is a file with a JSON object a line."""
    from dperm.release import SpendLog
    from dperm.release.ledger.importing import read_in

    log = SpendLog.current()
    say(f"{read_in(log, source):,} charges of {source} read into {log.where}.")


def head(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("head.json"),
    sign_key: Annotated[Path | None, typer.Option(help="Private key that signs it (see `dperm keygen`).")] = None,
) -> None:
    """Write down how many entries the log has and the hash that all of them lead to. Kept elsewhere, it shows later whether one
    was changed or taken out."""
    from dperm.privacy.signing import digest_of, sign
    from dperm.release import SpendLog
    from dperm.report import write_atomically

    probe_writable(output)
    log = SpendLog.current()
    found = log.head()
    log.verify(found)
    signature = {} if sign_key is None else {"signature": sign(digest_of(found), sign_key)}
    write_atomically(output, json.dumps({**found, **signature}, indent=2))
    say(f"{found['count']:,} entries until {found['time'] or 'now'}; head written to {output}.")


def verify(
    earlier: Annotated[Path | None, typer.Argument(help="A head that was written before.")] = None,
    verify_key: Annotated[Path | None, typer.Option(help="Public key that must have signed the head.")] = None,
) -> None:
    """Follow the chain through all entries: is any changed or gone, since an earlier head or at all?"""
    from dperm.privacy.signing import check_signature, digest_of
    from dperm.release import SpendLog

    stated = None if earlier is None else json_table(earlier)
    if verify_key is not None:
        if stated is None or "signature" not in stated:
            raise ValueError("Expected a signed head with --verify-key.")
        body = {name: value for name, value in stated.items() if name != "signature"}
        check_signature(digest_of(body), str(stated["signature"]), verify_key)
    log = SpendLog.current()
    say(f"{log.where}: all {log.verify(stated):,} entries are as they were written.")


def _say(account: Account) -> None:
    from dperm._rounding import downward, upward

    budget = account.budget
    who = "persons with all their rows" if budget.persons else "records"
    more = "".join([f", of {budget.owner}" if budget.owner else "", f", until {budget.expires}" if budget.expires else ""])
    say(
        f"{budget.label}: ε = {upward(account.epsilon)} of {budget.epsilon:g} at δ = {budget.delta:g} spent, "
        f"{downward(100 * account.left, 3)} % left; protects {who} by {budget.relation}{more}."
    )


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Budgets of data sets, in the spend log.", rich_markup_mode=None)
    group.command()(create)
    group.command()(show)
    group.command()(history)
    group.command("import")(import_log)
    group.command()(head)
    group.command()(verify)
    app.add_typer(group, name="budget")
