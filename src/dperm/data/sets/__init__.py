"""Named data sets: bundled, from a local folder, or from their publishers, each with its public schema or its known form."""
