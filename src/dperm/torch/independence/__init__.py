"""Checks, before a run is charged, of code that the engine cannot keep to one record: they find faults and prove nothing."""
