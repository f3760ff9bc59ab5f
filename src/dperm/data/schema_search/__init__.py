"""Finding a schema from the rows: `propose` drafts one without privacy, and `find` searches privately at a cost.

A proposed schema has read the data; it stays marked as proposed until the data holder confirms it. The counts of the private
search leave only through the release channel.
"""
