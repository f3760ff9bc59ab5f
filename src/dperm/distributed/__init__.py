"""Rows that live in parts on a cluster: Dask's collections as records of linear models. `pip install dperm[dask]`."""

from dperm.distributed.engine import DaskEngine
from dperm.distributed.table import PartedTable, parted_table

__all__ = ["DaskEngine", "PartedTable", "parted_table"]
