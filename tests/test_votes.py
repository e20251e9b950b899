"""Which stated answers count as one in a majority vote."""

from lanpo_jax import votes


def test_equal_answers_are_one_ballot_and_silence_has_none():
    answers = ["12", None, r"\boxed{}", "12.", "  12 ", "13", "", r"\frac{1}{2}", "0.5", "1/2"]
    assert votes.ballots(answers) == [[0, 3, 4], [5], [7, 8, 9]]


def test_ballots_do_not_depend_on_which_answer_comes_first():
    for answers in (["1/2", "0.5"], ["0.5", "1/2"], ["1,000", "1000"], ["(1, 2)", "( 1,2 )"]):
        assert len(votes.ballots(answers)) == 1, answers
    assert len(votes.ballots(["1/2", "0.5001", "2"])) == 3


def test_equal_means_that_each_is_accepted_for_the_other():
    """8/4 would be no answer where 2 is gold, so it does not vote for 2."""
    assert len(votes.ballots(["8/4", "2"])) == len(votes.ballots(["2", "8/4"])) == 2


def test_long_answers_are_compared_as_text_alone(monkeypatch):
    long = "+".join(["x"] * 2000)
    monkeypatch.setattr(votes.compare, "settle", None)  # would fail if it were asked
    assert votes.ballots([long, long, long + "+1"]) == [[0, 1], [2]]


def test_the_winner_is_the_most_frequent_answer_as_first_written():
    assert votes.winner(["3", "1/2", "0.5"]) == "1/2"
    assert votes.winner(["3", "4"]) == "3"
    assert votes.winner([None, None]) is None


def test_the_extractor_is_that_of_training():
    said = "I think it is 41"
    assert votes.extractor(["lanpo_jax.rewards.math.verify(extract='last')"])(said) == "41"
    assert votes.extractor(["lanpo_jax.rewards.shaping.overlong(limit=4, buffer=2)"])("41") == "41"
    strict = votes.extractor(["lanpo_jax.rewards.shaping.boxed", "lanpo_jax.rewards.math.verify"])
    assert strict("41") is None
    assert strict(r"\boxed{41}") == "41"
