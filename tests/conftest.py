"""Every test writes its charges to a log of its own; tests on real data find them beside the checkout or by DPERM_DATA."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests run one process per core: threads on top of that would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Tests of many cases alike, and which of these always run; `make test-slow` runs all.
ALWAYS = {
    "test_from_the_file_to_the_card": ("german_excel", "several_rows_of_a_person", "dates"),
    "test_killed_between_charge_release_and_checkpoint": ("charge-after-1", "release-after-7"),
    "test_importance_sampling_killed_keeps_within_its_filter": ("profile-10-part-after-4",),
    "test_quantiles_are_learned": ("0.9-auto", "0.5-output"),
    "test_the_proven_bound_holds_as_often_as_it_says": ("Gaussian", "randomised response"),
    "test_no_sound_mechanism_is_refuted_in_a_thousand_audits": ("Laplace", "randomised response"),
    "test_no_mechanism_and_no_score_costs_more": ("100.0-logarithmic",),
    "test_memory_of_norms_is_in_the_checkpoint_and_nowhere_else": ("4-profile", "14-renyi"),
    "test_noise_that_falls_has_its_law_at_every_scale_and_steps_that_are_independent": ("1",),
    "test_fits_keep_the_risk_and_hardly_less": ("objective", "one against the rest"),
    "test_a_log_that_lost_its_parts_spends_nothing_twice": ("4-1.3", "14-3.0", "4-6.0"),
    "test_the_update_is_unbiased_for_the_clipped_mean": ("1.0",),
    "test_sampled_gaussian_bounds_quadrature": ("0.01-0.8-32.0", "0.2-1.5-1.25", "0.5-3.0-4.75"),
    "test_a_penalty_on_roughness_costs_nothing": ("logistic-0.5",),
    "test_the_estimators_front_door": ("objective",),
    "test_every_cell_keeps_within_its_epsilon": (
        "fashion_mnist,epsilon=1,model=scattering,batch=2048,epochs=25,learning_rate=4",
        "mnist,epsilon=1,sampler=importance,pass_every=4",
    ),
    "test_replay_finds_the_defect": ("profile-_rate_from_the_true_sum-sensitivity", "profile-_norms_uncut-movement"),
    "test_never_below_the_exact_density": ("1.0-0.05-smoothed_hinge", "1.0-0.05-margin", "4.0-1.0-logistic"),
    "test_no_neighbour_moves_more_than_is_charged": ("groups-True-replace_one", "three classes-True-add_or_remove_one"),
    "test_networks_move_no_more_than_charged": ("adaptive-add_or_remove_one", "normalised-replace_one", "per layer-replace_one"),
    "test_poisson_sampled_gaussian_agrees_with_dp_accounting": ("0.9-10.0-100-1e-08", "0.5-3.0-50-0.001"),
    "test_a_smaller_budget_than_was_spent_is_refuted": ("profile",),
    "test_a_profile_is_above_its_events_and_not_by_much": ("PureDP", "Laplace", "Gaussian"),
    "test_a_try_s_budget_spends_the_whole": ("poisson",),
    "test_physical_batches_change_nothing": ("64",),
    "test_one_run_in_gradient_space_proves_one_of_four": ("replace_one",),
    "test_importance_sampling_by_a_word": ("None",),
    "test_replay_holds_it_to_its_steps_and_its_budgets": ("3.5-add_or_remove_one", "0.3-replace_one"),
    "test_masks_are_aligned_by_record": ("False",),
    "test_a_noisy_size_refuses_no_batch_that_was_paid_for": ("poisson",),
    "test_one_step_against_the_integral": ("0.2-5-0.6", "0.5-2-1.0"),
    "test_white_box_audit_of_a_cnn": ("4.0",),
    "test_every_mechanism_is_compared_to_the_end": ("add_or_remove_one",),
    "test_physical_batches_do_not_change_the_run": ("4", "100"),
    "test_replay_on_neighbours": ("200", "poisson", "rows", "add_or_remove_one", "replace_one"),
}

#: The other way round: cases that run in `make test-slow` alone. What is new runs always.
SELDOM = {"test_nothing_certified_moves_more_than_it_is_charged": ("persons", "published")}

_MEMORY = Path("/dev/shm")
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, case = item.name.partition("[")
        case = case.removesuffix("]")
        if (name in ALWAYS and case not in ALWAYS[name]) or case in SELDOM.get(name, ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_spend_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In memory where there is a folder in memory: a disk waits at each charge, of which there are thousands."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dperm-test-", dir=where, ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("DPERM_SPEND_LOG", f"{folder}/spend.db")
        yield


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = Path(os.environ.get("DPERM_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip("real data sets are not here; set DPERM_DATA to their folder")
    monkeypatch.setenv("DPERM_DATA", str(folder))
    return folder
