"""Readers of data files, one class for each kind of file; every module here is imported and its readers are found.

To add a kind of file, add a class below `TableReader`, `ArrayReader` (`file_reader.py`) or `ColumnarReader` (`columnar.py`).
Files may be malformed or hostile: a reader checks `Limits.current()` before it allocates memory. Users call
`dperm.data.read_dataset` instead. `tests/data/test_readers_contract.py` reports what a new reader lacks.
"""
