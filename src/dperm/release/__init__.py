"""The release channel: the one door through which a noisy value leaves, the log that it is charged to, the noise behind it."""

from dperm.release.channel import Channel, UnpaidReleaseError
from dperm.release.ledger import SpendLog, spend_log
from dperm.release.selection import best_of_tries
from dperm.release.source import Source, SystemSource

__all__ = ["Channel", "Source", "SpendLog", "SystemSource", "UnpaidReleaseError", "best_of_tries", "spend_log"]
