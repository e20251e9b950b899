"""Which test holds which of the reported faults: every id of the collection has a place, and every place exists.

The names are those of the collection of users' reports that the project was designed against; the inputs stand in the
tests themselves and in tests/objectives/trainer_cases.json.
"""

import json
import pathlib

import pytest

TESTS = pathlib.Path(__file__).parent
SHARED = TESTS.parent.parent / "shared" / "cases" / "trainer.jsonl"
CASES, FAULTS = "objectives/test_trainer_cases.py", "test_reported_faults.py"

COVERED = {
    "norm-01": (CASES, "test_norm_01_masked_truncated_rows_leave_the_denominator"),
    "norm-02": (CASES, "test_norm_02_an_optimizer_step_divides_by_its_own_tokens_only"),
    "norm-03": (CASES, "test_norm_03_the_micro_batch_size_changes_nothing"),
    "norm-04": (CASES, "test_norm_04_the_constant_divisor_knows_no_padding"),
    "norm-05": (CASES, "test_norm_05_a_fully_masked_batch_is_zero"),
    "clip-01": (CASES, "test_clip_01_each_side_is_counted_where_it_clips"),
    "kl-02": (CASES, "test_kl_02_k3_stays_finite_in_float32"),
    "kl-03": (CASES, "test_kl_03_identical_policies_have_no_kl"),
    "nan-01": (CASES, "test_nan_01_a_masked_token_cannot_poison_the_gradient"),
    "nan-02": (CASES, "test_nan_02_infinite_and_undefined_junk_under_the_mask"),
    "nan-05": (CASES, "test_nan_05_a_reward_that_is_no_number_is_refused_or_set_aside"),
    "adv-06": (FAULTS, "test_groups_are_what_one_prompt_request_gave"),
    "adv-07": (FAULTS, "test_groups_are_what_one_prompt_request_gave"),
    "adv-08": (CASES, "test_adv_08_truncated_samples_stay_in_their_group"),
    "adv-09": (FAULTS, "test_advantages_stay_with_their_completions_through_sorting_and_cutting"),
    "adv-10": (CASES, "test_adv_10_an_unscored_reward_is_neither_zero_nor_one"),
    "adv-11": (CASES, "test_adv_11_and_13_only_groups_with_differing_rewards_are_kept"),
    "adv-12": (CASES, "test_adv_12_a_dropped_group_has_no_kl_gradient_and_no_tokens"),
    "adv-13": (CASES, "test_adv_11_and_13_only_groups_with_differing_rewards_are_kept"),
    "mask-02": (FAULTS, "test_ended_or_truncated"),
    "mask-03": (FAULTS, "test_ended_or_truncated"),
    "mask-07": (FAULTS, "test_what_was_sampled_is_what_is_trained_on"),
    "mask-08": (CASES, "test_mask_08_feedback_tokens_carry_no_gradient"),
    "pos-03": (FAULTS, "test_no_gap_between_prompt_and_completion"),
    "pos-04": ("models/test_qwen.py", "test_rows_with_several_documents_equal_each_alone"),
    "tok-01": ("sampling/test_tokenizer.py", "test_one_bos_where_the_model_wants_one"),
    "mis-01": (CASES, "test_mis_01_and_02_both_sides_use_the_full_tempered_distribution"),
    "mis-02": (CASES, "test_mis_01_and_02_both_sides_use_the_full_tempered_distribution"),
    "mis-03": ("test_learner.py", "test_a_rate_of_zero_changes_nothing"),
    "mis-06": (CASES, "test_mis_06_log_probabilities_do_not_depend_on_the_pieces"),
    "res-01": (FAULTS, "test_resume_at_an_epoch_border_sees_the_whole_next_epoch"),
    "res-03": ("test_train.py", "test_what_makes_another_run_is_refused_unless_allowed"),
    "lr-01": (FAULTS, "test_the_schedule_counts_optimizer_updates"),
    "rew-05": (FAULTS, "test_soft_overlong_penalty"),
    "rew-06": (FAULTS, "test_soft_overlong_penalty"),
    "met-01": (CASES, "test_met_01_hosts_pool_sums_and_not_means"),
    "met-02": (FAULTS, "test_pass_at_k"),
    "met-03": (FAULTS, "test_pass_at_k"),
    "met-04": (FAULTS, "test_pass_at_k"),
    "met-05": (FAULTS, "test_standard_error_is_over_problems"),
    "met-06": (FAULTS, "test_a_metric_that_only_some_parts_have"),
    "shape-01": (FAULTS, "test_lengths_come_in_buckets"),
}
ELSEWHERE = {  # further tests of the same fault, in the running system
    "nan-05": [
        ("test_learner.py", "test_a_poisoned_update_is_not_taken"),
        ("test_numerical.py", "test_an_unknown_reward_is_left_out"),
        ("test_metric_names.py", "test_an_unknown_reward_is_counted_and_hides_no_other"),
    ],
    "mis-06": [("test_learner.py", "test_layout_and_micro_batches_change_nothing")],
    "met-06": [("test_train.py", "test_every_step_has_the_same_keys_and_what_users_search_for")],
    "tok-01": [("sampling/test_tokenizer.py", "test_smollm2_conventions")],
}
NOT_HERE = {  # faults of asynchronous trainers: here a step samples, then learns, in one process
    "asy-01": "no sample is ever stale",
    "asy-02": "no sample is ever stale",
    "asy-03": "there is no producer",
}


@pytest.mark.parametrize("case", sorted(COVERED))
def test_the_named_test_exists(case):
    for file, name in [COVERED[case], *ELSEWHERE.get(case, [])]:
        assert f"def {name}(" in (TESTS / file).read_text(), (file, name)


def test_every_reported_fault_has_its_place():
    if not SHARED.exists():
        pytest.skip("the collection of reports is not here")
    ids = {json.loads(line)["id"] for line in SHARED.read_text().splitlines()}
    assert ids == COVERED.keys() | NOT_HERE.keys()


def test_copied_inputs_are_those_of_the_collection():
    if not SHARED.exists():
        pytest.skip("the collection of reports is not here")
    found = {case.pop("id"): case for case in map(json.loads, SHARED.read_text().splitlines())}
    copied = json.loads((TESTS / "objectives" / "trainer_cases.json").read_text())
    assert all(found[case] == copied[case] for case in copied)
    assert {case for case, (file, _) in COVERED.items() if file == CASES} == copied.keys()
