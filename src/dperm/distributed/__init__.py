"""Linear models on partitioned tables: Dask collections as records, with sums computed on the workers.

Users pass Dask collections to the estimators and rarely import this package. In training only sums over partitions return to
the client; rows stay on the workers. Install with `pip install dperm[dask]`; Dask is imported only when it is used.
"""

from dperm.distributed.engine import DaskEngine
from dperm.distributed.table import PartedTable, parted_table

__all__ = ["DaskEngine", "PartedTable", "parted_table"]
