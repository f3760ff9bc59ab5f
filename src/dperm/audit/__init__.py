"""Attacks that try to refute certificates."""

from dperm.audit.distinguish import compare_scores, distinguish
from dperm.audit.pairs import Pair, extreme_pairs, game_pairs
from dperm.audit.replay import replay
from dperm.audit.result import AuditResult, overall, results_from_json, results_to_json
from dperm.audit.training import Training, one_at_a_time
from dperm.audit.trials import Trials

__all__ = [
    "AuditResult",
    "Pair",
    "Training",
    "Trials",
    "compare_scores",
    "distinguish",
    "extreme_pairs",
    "game_pairs",
    "one_at_a_time",
    "overall",
    "replay",
    "results_from_json",
    "results_to_json",
]
