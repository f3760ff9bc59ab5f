"""Two ways to a schema: proposed from the rows, for a person to confirm, or found privately, and charged."""
