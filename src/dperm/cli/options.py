"""Options that several commands share. A command takes one value of options, a dataclass whose fields are annotated for typer."""

from __future__ import annotations

from typing import Annotated

import typer

from dperm.jobs.options import SOURCE

Source = Annotated[str, typer.Argument(help=f"Records: {SOURCE}.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
OnError = Annotated[str, "Rows that do not fit the schema: fail, or skip, which leaves them out and says why."]
