"""The commands, one module each: `register(app)` adds it."""
