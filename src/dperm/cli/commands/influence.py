"""Show which records matter to a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dperm.cli.command_files import JsonFlag, Source
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json
from dperm.jobs.files import dataset_of, refuse_same
from dperm.jobs.models import KINDS, usual_model


@dataclass(frozen=True, kw_only=True)
class InfluenceOptions:
    source: Source
    target: Annotated[str | None, "Target column."] = None
    schema: Annotated[Path | None, "Public schema of the table (see `dperm data propose`)."] = None
    model: Annotated[
        str | None,
        "logistic or svm for labels, ridge for numbers [default: by the schema's target, as dperm train chooses].",
    ] = None
    row: Annotated[int | None, "On the prediction for this row of the table, counted from 1 [default: on the parameters]."] = None
    regularisation: Annotated[float, "λ of (λ/2)‖θ‖² beside the mean loss."] = 1e-3
    top: Annotated[int, "How many records are listed."] = 20
    output: Annotated[Path, "Page to write."] = Path("influence.html")
    as_json: JsonFlag = False


def influence(asked: InfluenceOptions) -> None:
    """List and draw the records that a model would not be the same without. PRIVATE: for the data holder only.

    \b
    Examples:
      dperm influence people.csv --target income
      dperm influence people.csv --target income --row 17 -o why-17.html
    """
    from dperm import _validate as check
    from dperm.report.influence import influence_page, influences
    from dperm.report.summary import influence_table

    check.integer("--top", asked.top)
    refuse_same(asked.source, asked.schema, asked.output)
    page = reserved(asked.output, private=True)
    dataset, schema = dataset_of(asked.source, asked.target, asked.schema)
    model = asked.model
    if model is None:  # what influence knows of labels with an order is logistic
        model = usual_model(labels=schema is None or bool(schema.classes))
    found = influences(dataset, model, row=asked.row, regularisation=asked.regularisation)
    page.write(influence_page(found, asked.top))
    if asked.as_json:
        say_json(
            {
                "for_data_holder_only": True,
                "charged": False,
                "model": model,
                "what": found.what,
                "records": len(found.change),
                "most": found.most(asked.top),
            }
        )
        return
    say(f"Model: {KINDS[model].title}{'' if asked.model else ', by the target. --model names another'}.")
    influence_table(found, asked.top)
    say(f"PRIVATE, for the data holder only: this names single records. Page written to {asked.output}.")
