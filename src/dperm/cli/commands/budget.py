"""Budgets of data sets, in the spend log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json, warn
from dperm.jobs.budgeting import BudgetingOptions, create_budget, head_at, write_head

if TYPE_CHECKING:
    from dperm.release.ledger import Account


def init() -> None:
    """On a PostgreSQL server: make the roles of those who make budgets and of those who may only charge. Run it as who
    administers the database, and again after an update of dperm.

    \b
    Example:
      DPERM_SPEND_LOG='postgresql://admin@db.example.org/spend?sslmode=verify-full' dperm budget init
    """
    from dperm.release import SpendLog
    from dperm.release.ledger.roles import make_roles

    log = SpendLog.current()
    roles = make_roles(log.database)
    say(f"{log.where}: {roles.owner} may make budgets, {roles.charger} may charge. Give them to users of the server:")
    say(f'  GRANT "{roles.owner}" TO ...;')
    say(f'  GRANT "{roles.charger}" TO ...;')
    say(f"Whoever logs in as {roles.administrator} may do anything: use it for nothing else.")


@dataclass(frozen=True, kw_only=True)
class CreateOptions(BudgetingOptions):
    label: Annotated[str, typer.Argument(help="The data set's name, as certificates and charges have it.")]
    persons: Annotated[
        bool | None,
        typer.Option("--persons/--records", help="It protects persons with all their rows, or records [default: records]."),
    ] = None
    rule: Annotated[Literal["renyi", "gdp"] | None, typer.Option("--filter", help="How releases add up [default: renyi].")] = None


def create(asked: CreateOptions) -> None:
    """Give a data set a budget, or another one. From then on the spend log takes no charge that exceeds it, and none of a data
    set without a budget. What was charged under the name before counts. Another one keeps the owner, the last day, the share for
    warnings and whom it protects, unless they are stated.

    \b
    Examples:
      dperm budget create stays --epsilon 4 --delta 1e-6 --owner "Data Protection" --expires 2027-12-31
      dperm budget create stays --epsilon 4 --filter gdp
      dperm budget create stays --epsilon 2 --plan releases.json
      dperm budget create stays --epsilon 4 --sign-key owner.pem
    """
    account = create_budget(asked)
    _say(account)
    if account.spent:
        say("It was charged before. That counts; but what was released must be no reason for this budget's rule and size.")
    say("The same records under another name are not counted: whoever names data sets answers for that.")


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    label: Annotated[str | None, typer.Argument(help="One data set [default: all].")] = None
    as_json: JsonFlag = False


def show(asked: ShowOptions) -> None:
    """Show the budgets, and what is left of each.

    \b
    Example:
      dperm budget show
    """
    from dperm.release import SpendLog

    log = SpendLog.current()
    found = [account for account in log.accounts_held() if asked.label in (None, account.budget.label)]
    if asked.label is not None and not found:
        raise ValueError(f"Expected a data set with a budget in {log.where}, got {asked.label!r}.")
    if asked.as_json:
        from dperm.report.budgets import Spending

        tables = [
            {
                **each.to_dict(),
                "by": Spending.of(log, each).shares,
                "settlements": log.history(each.budget.label, ("settlement",)),
            }
            for each in found
        ]
        say_json({"log": log.where, "budgets": tables})
        return
    say(f"{log.where}: {len(found)} budget{'s' if len(found) != 1 else ''}.")
    for account in found:
        _say(account)
        if given_back := log.history(account.budget.label, ("settlement",)):
            steps = sum(entry["unreleased"] for entry in given_back)
            runs = f"{len(given_back):,} run{'s' if len(given_back) > 1 else ''}"
            say(f"  {runs} that stopped early gave back {steps:,} steps, which are not in what was spent.")


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(ShowOptions):
    output: Annotated[Path | None, "Page that draws what was spent over time."] = None


def history(asked: HistoryOptions) -> None:
    """Every charge, budget and settlement, oldest first. With -o a page that draws what was spent over time.

    \b
    Examples:
      dperm budget history
      dperm budget history -o spent.html
    """
    from dperm.release import SpendLog
    from dperm.release.ledger.entries import damaged

    if asked.output is not None:
        from dperm.report.budgets import budgets_page

        page = reserved(asked.output)
        page.write(budgets_page(SpendLog.current(), None if asked.label is None else [asked.label]))
    log = SpendLog.current()
    if asked.as_json:
        say_json(log.history(asked.label))
        return
    for entry in log.entries(asked.label, ("charge", "budget", "settlement", "refusal", "time")):
        with damaged(entry["number"], entry):
            say(_line(entry))


def _line(entry: dict[str, Any]) -> str:
    """An entry of the history, for people."""
    from dperm.release.ledger import Budget

    if entry["kind"] == "budget":
        signed = f", signed by {entry['owner_key'][:16]}…" if "owner_key" in entry else ""
        what = f"budget ε = {Budget.from_dict(entry['budget']).epsilon:g}{signed}"
    elif entry["kind"] == "settlement":
        gave_back = f"{entry['unreleased']:,} of {entry['charged']:,} steps were never released"
        what = f"settled {entry['charge'][:8]}…: {gave_back}"
    elif entry["kind"] == "time":
        what = f"time corrected from {entry['was']}"
    else:
        what = f"refused: {entry['why']}" if entry["kind"] == "refusal" else entry["mechanism"]
    marks = [name for name, holds in (("claimed", entry.get("claimed")), ("seeded", not entry.get("private", True))) if holds]
    named = f"{entry.get('label') or '(no label)':20s}  {entry.get('by', ''):12s}"
    return f"{entry['number']:6d}  {entry['time']}  {named}  {what}{' '.join(['', *marks])}"


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    source: Annotated[Path, typer.Argument(help="A log of lines, spend.jsonl.")]


def import_(asked: ImportOptions) -> None:
    """Read in a log of an earlier version. That is a file with a JSON object a line.

    \b
    Example:
      dperm budget import spend.jsonl
    """
    from dperm.release import SpendLog
    from dperm.release.ledger.importing import read_in

    log = SpendLog.current()
    say(f"{read_in(log, asked.source):,} charges of {asked.source} read into {log.where}.")


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    output: Annotated[Path, "File to write."] = Path("head.json")
    sign_key: Annotated[Path | None, "Private key that signs it (see `dperm keygen`)."] = None


def head(asked: HeadOptions) -> None:
    """Write down how many entries the log has and the hash that all of them lead to. Kept elsewhere, it shows later whether one
    was changed or taken out.

    \b
    Example:
      dperm budget head -o head.json
    """
    found = write_head(asked.output, asked.sign_key)
    say(f"{found['count']:,} entries until {found['time'] or 'now'}; head written to {asked.output}.")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    earlier: Annotated[Path | None, typer.Argument(help="A head that was written before.")] = None
    verify_key: Annotated[Path | None, "Public key that must have signed the head."] = None
    remember: Annotated[bool, "Take the log as it is now: it was restored or replaced by somebody who may."] = False


def verify(asked: VerifyOptions) -> None:
    """Follow the chain through all entries: is any changed or gone, since an earlier head, since the log was last used from here,
    or at all?

    \b
    Examples:
      dperm budget verify
      dperm budget verify head.json --verify-key owner.pem.pub
    """
    from dperm.release import SpendLog
    from dperm.release.ledger.log import NOT_REMEMBERED

    if asked.earlier is None and asked.verify_key is not None:
        raise ValueError("Expected a signed head with --verify-key.")
    stated = None if asked.earlier is None else head_at(asked.earlier, asked.verify_key)
    log = SpendLog.current()
    was_remembered = log.is_remembered
    say(f"{log.where}: all {log.verify(stated, remember_it=asked.remember):,} entries are as they were written.")
    if stated is None and not was_remembered:
        warn(NOT_REMEMBERED)


@dataclass(frozen=True, kw_only=True)
class CorrectTimeOptions:
    sign_key: Annotated[
        list[Path] | None,
        "Private key of the owner of budgets that expire; once for each owner. Budgets without a key need none.",
    ] = None


def correct_time(asked: CorrectTimeOptions) -> None:
    """Set the time of the log back to what the clocks say, after an entry by a clock that was ahead let budgets expire.

    \b
    Example:
      dperm budget correct-time
    """
    from dperm.privacy.certificates.signing import SigningKey
    from dperm.release import SpendLog

    log = SpendLog.current()
    say(f"{log.where}: its time is {log.correct_time([SigningKey(path) for path in asked.sign_key or ()])} now.")


def _say(account: Account) -> None:
    from dperm._rounding import downward

    budget = account.budget
    who = "persons with all their rows" if budget.persons else "records"
    until = (
        ""
        if not budget.expires
        else f", {'expired on' if budget.expires < f'{datetime.now(UTC).date()}' else 'until'} {budget.expires}"
    )
    more = "".join([f", of {budget.owner}" if budget.owner else "", until])
    told = budget.rule.told_spent(account.spent)
    say(
        f"{budget.label}: ε = {budget.epsilon:g} at δ = {budget.delta:g} by a {budget.rule.name}, of which "
        f"{downward(100 * account.left, 3)} % is left{f' (spent: {told})' if told else ''}; protects {who} by "
        f"{budget.relation}{more}."
    )
