"""Certificates: what was spent and on which assumptions, as JSON that can be checked and signed."""
