"""Readers of files, one for each kind: delimited text, workbooks, NumPy and libsvm arrays, and tables read a part at a time."""
