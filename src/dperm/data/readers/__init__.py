"""Readers of data files: every file here is imported, and each class in it is a kind of file.

To add a kind, add a file with a class below `TableReader`, `ArrayReader` (`data/file_reader.py`) or `ColumnarReader`
(`data/columnar.py`). Files may be malformed or hostile: a reader checks `Limits.current()` before it allocates memory. Users call
`dperm.data.read_dataset` instead. `tests/data/readers/test_readers_contract.py` reports what a new reader lacks.
"""
