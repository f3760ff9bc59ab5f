"""Private runs under other libraries' trainers. Each module needs its library, so nothing is imported here."""
