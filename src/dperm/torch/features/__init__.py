"""Feature extractors and normalisation for small private models; users import them from `dperm.torch`.

Scattering features and tempered sigmoids depend on no data. Channel statistics are released once with noise and charged.
"""
