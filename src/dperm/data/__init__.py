"""Tables, images and texts as private records: reading files, applying public schemas, and loading data sets by name.

Users import from here. `Schema` declares what is publicly known of a table, `read_dataset` reads a file by it into a `Dataset`,
and `load` reads a named set. Nothing here spends privacy except `find`, which searches for a schema privately and charges for
it.
"""

from dperm._extras import require
from dperm.data.dataset import Dataset
from dperm.data.read import read_dataset, read_table
from dperm.data.schema.columns import Column
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import ReadTable, SchemaError
from dperm.data.schema.ranges import TargetRange
from dperm.data.schema.schema import Schema
from dperm.data.schema_search.private_search import find
from dperm.data.schema_search.proposing import confirmed, propose
from dperm.data.sets.images import Images, load_images
from dperm.data.sets.named_sets import load, named, schema_of
from dperm.data.sets.reviews import Reviews, hashed_words, load_reviews
from dperm.data.streaming import read_stream
from dperm.data.untrusted_files import DataError

require("pandas", "A table")  # loaded where a table is read, and not before
require("pyarrow", "A table")

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "Images",
    "ReadTable",
    "Reviews",
    "Schema",
    "SchemaEncoder",
    "SchemaError",
    "TargetRange",
    "confirmed",
    "find",
    "hashed_words",
    "load",
    "load_images",
    "load_reviews",
    "named",
    "propose",
    "read_dataset",
    "read_stream",
    "read_table",
    "schema_of",
]
