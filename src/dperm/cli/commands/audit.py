"""`dperm audit`: attack a model's mechanism, or one named by its settings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.printing import progress, say, say_json, say_lines
from dperm.jobs.auditing import AuditingOptions, prepared_audit

if TYPE_CHECKING:
    from dperm.audit import AuditResult
    from dperm.jobs.auditing import Audit

_REFUTED = 3  # exit code
_STAGES = {
    "replay": "Replaying on worst-case neighbours",
    "pilot": "Looking for the easiest pair",
    "game": "Playing the game",
    "white box": "Watching canaries from within",
}


@dataclass(frozen=True, kw_only=True)
class AuditOptions(AuditingOptions):
    model: Annotated[Path | None, typer.Argument(help="A model written by `dperm train`; without one, the options below.")] = None
    kind: Annotated[str | None, typer.Option("--model", help="logistic, svm or ridge [default: logistic].")] = None
    as_json: JsonFlag = False


def audit(asked: AuditOptions) -> None:
    """Try to refute a certificate: replay the mechanism on worst-case neighbours, play distinguishing games, infer members.

    Costs no privacy: everything but --members is trained on made-up records. Exit code 3: refuted.

    \b
    Examples:
      dperm audit model.json
      dperm audit model.json --members train.csv --others test.csv
      dperm audit --mechanism gradient --epsilon 4 --features 20 --public-size 10000
    """
    from dperm.audit import overall, results_to_json

    with ExitStack() as until_written:
        job = until_written.enter_context(prepared_audit(asked))
        step = until_written.enter_context(progress("Attacking", not asked.as_json))
        if not asked.as_json:
            say_lines(f"{job.expected}\n")
        results = job.run(None if step is None else lambda name, done, total: step(done, total, _STAGES[name]))
    if asked.as_json:
        say_json(results_to_json(results))
    else:
        _tell(job, results)
        say(f"Results written to {asked.output}.")
    if overall(results) == "refuted":
        raise typer.Exit(_REFUTED)


def _tell(target: Audit, results: list[AuditResult]) -> None:
    from dperm.audit import learned, overall

    verdict, certificate = overall(results), target.certificate
    say_lines(f"{target.name}\n")
    for result in results:
        say(f"{result.attack[:1].upper()}{result.attack[1:]}")
        for sentence in result.sentences():
            say(f"  {sentence}")
        say()
    claimed = certificate is not None and certificate.epsilon is None
    if certificate is not None and claimed:
        say(f"The model's certificate is only claimed: {certificate.claim}. What was attacked is its mechanism alone.")
    if verdict == "refuted":
        say("REFUTED: the certificate states less than this mechanism costs. Do not rely on it.")
    elif claimed:
        say("Not refuted, and not proven either: nothing here certifies this model.")
    elif any(result.unseen for result in results):
        say("Not refuted, within the limits named above. The proof is the theorem that the certificate names.")
    else:
        say("Not refuted. That is not a proof: the proof is the theorem that the certificate names.")
    say(learned(results))
