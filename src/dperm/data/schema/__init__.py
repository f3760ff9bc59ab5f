"""Public schemas of tables: the declaration, its JSON file, and the encoding of rows as features and targets.

A schema must be public: it is stated, not learnt from the rows. Each row is encoded by itself: code here must not let one
record change how another one is read. Users import `Schema` and `SchemaEncoder` from `dperm.data`.
"""
