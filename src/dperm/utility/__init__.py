"""What ε buys: utility along ε, choosing ε, and bounds. Unless it says what it is charged, nothing here is private."""

from dperm.utility.bounds import BOUNDS, Bound, Problem, measured_problem
from dperm.utility.choose import ChosenEpsilon, UtilityCurve
from dperm.utility.curve import EpsilonCurve
from dperm.utility.excess import MeasuredExcess, measured_excess
from dperm.utility.first_order import FirstOrder, first_order
from dperm.utility.path import UtilityPath

__all__ = [
    "BOUNDS",
    "Bound",
    "ChosenEpsilon",
    "EpsilonCurve",
    "FirstOrder",
    "MeasuredExcess",
    "Problem",
    "UtilityCurve",
    "UtilityPath",
    "first_order",
    "measured_excess",
    "measured_problem",
]
