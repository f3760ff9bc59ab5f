"""Attacks that try to refute the certificates of dperm, and those of other libraries treated as black boxes.

Start with `attack`, which runs all attacks that suit a `Training`. An attack returns an `AuditResult`; it may contradict a
certificate but never proves one. Audits only observe: they replace the channel's source of randomness and must not change what
a mechanism does. New mechanisms are added to the catalogue in `tests/helpers/catalogue/`, not here.
"""

from dperm.audit.distinguish import compare_scores, distinguish
from dperm.audit.figures import curve_figure
from dperm.audit.linear import Trials
from dperm.audit.low_bits import low_bits
from dperm.audit.membership import member_scores, membership, record_losses
from dperm.audit.one_run import one_run
from dperm.audit.outputs import one_at_a_time
from dperm.audit.pairs import Pair, extreme_pairs, game_pairs, influential_pair, network_pairs, worst_pairs
from dperm.audit.recording import Forced, Recorder, Recording
from dperm.audit.replay import replay
from dperm.audit.result import AuditResult, learned, overall, results_from_json, results_to_json
from dperm.audit.suite import AttackPlan, attack, planned_attack
from dperm.audit.training import Training
from dperm.audit.white_box import one_run_gradients, white_box

__all__ = [
    "AttackPlan",
    "AuditResult",
    "Forced",
    "Pair",
    "Recorder",
    "Recording",
    "Training",
    "Trials",
    "attack",
    "compare_scores",
    "curve_figure",
    "distinguish",
    "extreme_pairs",
    "game_pairs",
    "influential_pair",
    "learned",
    "low_bits",
    "member_scores",
    "membership",
    "network_pairs",
    "one_at_a_time",
    "one_run",
    "one_run_gradients",
    "overall",
    "planned_attack",
    "record_losses",
    "replay",
    "results_from_json",
    "results_to_json",
    "white_box",
    "worst_pairs",
]
