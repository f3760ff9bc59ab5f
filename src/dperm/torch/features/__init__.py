"""Public or privately released features of inputs, on which small private models do well."""
