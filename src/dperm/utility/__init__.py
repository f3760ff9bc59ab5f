"""What ε buys: utility along ε, choosing ε, and bounds. Unless it says what it is charged, nothing here is private."""

from dperm.utility.choose import ChosenEpsilon, UtilityCurve
from dperm.utility.curve import EpsilonCurve
from dperm.utility.first_order import FirstOrder, first_order
from dperm.utility.path import UtilityPath

__all__ = ["ChosenEpsilon", "EpsilonCurve", "FirstOrder", "UtilityCurve", "UtilityPath", "first_order"]
