"""Tables of other libraries as pandas frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def as_frame(table: Any) -> pd.DataFrame:
    """A pandas frame as it is; any table that speaks Arrow (polars, pyarrow, DuckDB …) as one. TypeError for anything else."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        advice = "read a file by dperm.data.read_frame" if isinstance(table, (str, bytes)) or hasattr(table, "__fspath__") else ""
        advice = "collect it first" if hasattr(table, "collect") else advice
        raise TypeError(
            f"Expected a table with named columns, of pandas, polars or Arrow, got {type(table).__name__}"
            + (f": {advice}." if advice else ".")
        )
    import pyarrow as pa

    # whole numbers would turn to fractions by one missing value, and large ones be others: what one record holds must not matter
    return pa.table(table).to_pandas(integer_object_nulls=True)
