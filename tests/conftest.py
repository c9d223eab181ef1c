import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples everywhere, and as long as they take: a busy machine is no failure.
settings.register_profile("portable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("portable")
# Two workers with two threads each would wait for each other on two cores.
THREADS = int(os.environ.get("ANTEMBED_TEST_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"))
# Left out by -m "not slow": what takes long and has a quicker twin beside it.
SLOW = (
    "test_lifecycle.py::test_killed_again_and_again_a_run_ends_in_the_same_bytes[torch-6]",
    "test_language_task.py::test_it_learns[options5]",
    "test_language_task.py::test_an_interrupted_run_ends_in_the_same_bytes[options0]",
    "test_language_task.py::test_right_scores_have_no_gradient_on_average[Sampled-log-uniform]",
    "test_language_task.py::test_right_scores_have_no_gradient_on_average[NoiseContrast-unigram]",
    "test_sweep_text.py::test_two_processes_give_the_same_records",
    "test_sparsify.py::test_an_interrupted_run_ends_in_the_same_bytes[prune]",
    "test_growth.py::test_the_planted_number_of_anchors_is_found[12]",
    "test_growth.py::test_stopped_again_and_again_while_growing_a_run_ends_in_the_same_bytes",
    "test_without_torch.py::test_predicting_classes[ngrams]",
    "test_text_classifier.py::test_scikit_learn_clones_validates_and_searches[ngrams]",
    "test_automatic.py::test_the_unit_of_the_ratings_does_not_matter[0.001]",
    "test_compress.py::test_more_bytes_mean_less_error",
    "test_add_objects.py::test_grown_tables_train_as_in_one_process[3]",
    "test_recipes.py::test_a_recipe_runs_and_later_options_win",
    "test_sharded_layer.py::test_processes_equal_one[1]",
    "test_sharded_layer.py::test_processes_equal_one[4]",
    *(f"test_shared_runs.py::test_processes_end_as_one[{n}, all]" for n in (1, 2, 3, 4)),
    "test_storage.py::test_saved_by_two_loaded_by_others[5-numbers1]",
    "test_torchrun.py::test_a_killed_rank_restarts_and_the_end_is_the_same[1-sync 3]",
    "test_torchrun.py::test_a_rank_killed_at_any_time_changes_nothing[exchange]",
    "test_torchrun.py::test_a_rank_killed_at_any_time_changes_nothing[sync]",
    "test_torchrun.py::test_a_run_continues_with_other_numbers_of_processes",
    *(
        f"test_golden.py::test_results_are_what_they_were[{case}]"
        for case in (
            *("prune", "fused-polish", "fused-bytes", "fused-trend", "hashed", "descent-full", "descent-unobserved"),
            *("bag-auto", "bag-kmeans", "bag-vvd-init", "bag-sparse-code", "language-transformer", "classify-automatic"),
        )
    ),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.endswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _same_start(tmp_path_factory, monkeypatch):
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def shared_data() -> Path:
    folder = os.environ.get("ANTEMBED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ANTEMBED_DATA names no folder with the real data sets")
    return Path(folder)
