"""Checks of a model before the charge: refused modules and calls, and whether it treats each record independently.

No guarantee rests on them: by default the engine runs a model on one record at a time, and the checks only find models that
would then behave differently. With `independence="tested"` they look for records that influence one another, and what they
accept is an assumption of the caller on the certificate.
"""
