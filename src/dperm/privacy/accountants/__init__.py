"""Accountants: the privacy profile of an event, by the tightest theorem that covers it, and calibration to a budget."""
