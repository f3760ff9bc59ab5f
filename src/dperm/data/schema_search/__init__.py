"""How a schema comes about: read off the rows for a person to confirm, or found privately and charged."""
