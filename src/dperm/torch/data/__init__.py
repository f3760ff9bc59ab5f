"""Records for networks: data sets indexed by record, collation of one record at a time, and privacy units of several rows.

Users pass tensors or a map-style data set to `PrivateTrainer`. Code here must not let one record influence how another is
loaded or collated.
"""
