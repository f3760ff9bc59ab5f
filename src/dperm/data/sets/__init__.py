"""Named data sets: tables with a public schema, image sets and reviews, bundled or downloaded.

Published files come from the folder `DPERM_DATA` or from their publisher, and must match their checksums. To add a table, add a
JSON schema in `data/schemas/`; code is needed here only for other forms of data.
"""
