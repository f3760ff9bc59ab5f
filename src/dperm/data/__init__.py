"""Data: tables through public schemas, and named sets."""

from dperm.data.read import DataError, Dataset, read_dataset, read_frame
from dperm.data.registry import load, named, schema_of
from dperm.data.schema import Column, Schema, SchemaError, propose

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "Schema",
    "SchemaError",
    "load",
    "named",
    "propose",
    "read_dataset",
    "read_frame",
    "schema_of",
]
