"""Language models: losses of one record each, collation that pads each record by its own length, and preference tuning."""

from dperm.torch.language.losses import causal_language_loss, log_probabilities
from dperm.torch.language.preference import DirectPreference, with_reference
from dperm.torch.language.tokens import PreferenceTokens, Tokens

__all__ = [
    "DirectPreference",
    "PreferenceTokens",
    "Tokens",
    "causal_language_loss",
    "log_probabilities",
    "with_reference",
]
