"""Accounting of what is chosen on the way: noise by results, tries until one is good, and what each record has spent."""
