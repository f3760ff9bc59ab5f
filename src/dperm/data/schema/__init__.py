"""The public schema of a table: its columns, how entries become features, and the JSON file that states all of it."""
