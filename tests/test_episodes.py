"""Turn protocols with a fake model: mixture, fall-back, what prompts may hold, what the pool keeps."""

import ast
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lanpo_jax
from lanpo_jax import episodes, protocols, spec, types
from lanpo_jax.experience import guide, prompts, retrieval
from lanpo_jax.experience import pool as pool_lib
from tests import fakes

SHORT = prompts.Templates(style="short", answer="number")
ROOT = pathlib.Path(lanpo_jax.__file__).parent


def run(problems, model, pool, steps=1, start=0, seed=0, grade=fakes.grade, **options):
    """Groups and metrics of several steps of `lanpo`."""
    given = {"templates": SHORT, "truncate": fakes.truncate, "fits": fakes.fits, "group": 4, "min_pool": 5}
    given |= {"max_new_tokens": 50, "attempt_tokens": 40, "principle_tokens": 20} | options
    return [
        episodes.lanpo(problems, step=step, seed=seed, pool=pool, generate=model, grade=grade, **given)
        for step in range(start, start + steps)
    ]


def contents(prompt: types.Prompt) -> str:
    return "\n".join(m["content"] for m in prompt.messages)


def test_direct_sends_plain_prompts_once_and_splits_grades():
    model, problems = fakes.Model(), fakes.problems(3)
    groups, metrics = episodes.direct(problems, model, fakes.grade, SHORT, "val/toy", group=4, max_new_tokens=9)
    ((role, sent),) = model.calls
    assert role == "policy" and [p.key for p in sent] == [f"val/toy/story/{i}/plain" for i in range(3)]
    assert all(p.samples == 4 and p.max_new_tokens == 9 for p in sent)
    assert metrics == {"checker/errors": 2.0}
    for group, problem in zip(groups, problems, strict=True):
        assert group.problem is problem and group.mode == "plain" and group.role == "policy"
        right = ["RIGHT" in c.text for c in group.generation.completions]
        assert group.grades.correct.tolist() == right
        assert group.grades.rewards.tolist() == group.grades.parts["fake"].tolist()
        assert len(group.grades.reasons) == 4
    assert episodes.direct([], model, fakes.grade, SHORT) == ([], {})


def test_modes_come_in_their_shares_and_fall_back_is_counted():
    problems, pool = fakes.problems(400), pool_lib.Pool()
    (_, first), *rest = run(problems, fakes.Model(), pool, steps=4)
    assert first["lanpo/share_plain"] == 1.0 and first["lanpo/share_intra"] == first["lanpo/share_inter"] == 0.0
    assert first["lanpo/fallback"] == pytest.approx(0.5, abs=0.08)
    assert first["lanpo/fallback_no_attempt"] + first["lanpo/fallback_small_pool"] == first["lanpo/fallback"] * 400
    shares = np.mean([[m[f"lanpo/share_{k}"] for k in ("plain", "intra", "inter")] for _, m in rest], axis=0)
    assert np.abs(shares - [0.5, 0.25, 0.25]).max() < 0.05  # 1200 draws: three standard errors are .043
    assert all(m["lanpo/fallback"] < 0.01 for _, m in rest)


def test_one_mode_for_a_whole_group_and_one_call_for_a_whole_step():
    problems, pool, model = fakes.problems(40), pool_lib.Pool(), fakes.Model()
    calls = []
    run(problems, model, pool, steps=2, grade=lambda *a: calls.append(a) or fakes.grade(*a), principle_age=1)
    assert [len(p) for _, p in model.calls][::2] == [40, 40]  # rollouts, then requests for principles
    assert len(model.calls) == 4 and len(calls) == 2
    assert all(p.samples == 4 for p in model.calls[2][1]) and all(p.samples == 1 for p in model.calls[3][1])
    assert {p.max_new_tokens for p in model.calls[3][1]} == {20}


def test_same_seed_and_step_same_everything_and_another_seed_other_modes():
    def prompts_of(seed):
        model = fakes.Model()
        run(fakes.problems(30), model, pool_lib.Pool(), steps=3, seed=seed)
        return model.calls

    assert prompts_of(0) == prompts_of(0)
    assert [p.key for p in prompts_of(0)[2][1]] != [p.key for p in prompts_of(1)[2][1]]


def test_a_problems_mode_does_not_depend_on_its_company():
    problems = fakes.problems(30)
    pools = [pool_lib.Pool(), pool_lib.Pool()]
    for pool in pools:
        run(problems, fakes.Model(), pool, modes={"plain": 1.0})
    modes = {"plain": 0.5, "intra": 0.5}
    whole = run(problems, fakes.Model(), pools[0], start=1, modes=modes)[0][0]
    part = run(problems[7:3:-1], fakes.Model(), pools[1], start=1, modes=modes)[0][0]
    assert [g.mode for g in part] == [g.mode for g in whole[7:3:-1]]
    assert [g.generation.completions[0].text for g in part] == [g.generation.completions[0].text for g in whole[7:3:-1]]


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped():
    problems = fakes.problems(40)
    straight, before, after = fakes.Model(), fakes.Model(), fakes.Model()
    pool, again = pool_lib.Pool(capacity=30), pool_lib.Pool(capacity=30)
    whole = run(problems, straight, pool, steps=5, principle_age=2)
    run(problems, before, again, steps=2, principle_age=2)
    again = pool_lib.from_state(json.loads(json.dumps(again.state())))
    after.calls = list(before.calls)  # the fake numbers its calls
    resumed = run(problems, after, again, steps=3, start=2, principle_age=2)
    assert after.calls == straight.calls
    assert [m for _, m in resumed] == [m for _, m in whole[2:]]
    assert json.dumps(again.state()) == json.dumps(pool.state())


def test_attempts_are_unguided_ones_and_shown_whatever_they_earned():
    problems, pool, model = fakes.problems(60), pool_lib.Pool(), fakes.Model()
    stepped = run(problems, model, pool, steps=4)
    written = {c.text for gs, _ in stepped for g in gs if g.mode == "plain" for c in g.generation.completions}
    for id in pool.ids():
        assert {a.text for a in pool.entry(id).attempts} <= written
    shown = [p.messages[-2]["content"] for p in model.rollouts() if p.key.endswith("/intra")]
    assert set(shown) <= written
    assert all(text.endswith(" plain") for text in written)
    right = np.mean(["RIGHT" in text for text in shown])
    assert len(shown) > 30 and 0.25 < right < 0.75  # the fake is right half of the time


def test_either_stored_attempt_may_be_shown():
    problems, pool, model = fakes.problems(60), pool_lib.Pool(), fakes.Model()
    run(problems, model, pool, steps=2, modes={"plain": 1.0}, group=1)
    run(problems, model, pool, start=2, modes={"intra": 1.0})
    newer = [" in call 3 plain" in contents(p) for p in model.calls[-1][1]]
    assert all(n or " in call 1 plain" in contents(p) for n, p in zip(newer, model.calls[-1][1], strict=True))
    assert 15 < sum(newer) < 45  # 60 fair draws: within four standard errors of 30


def test_inter_shows_lessons_of_other_problems_and_counts_their_use():
    problems, pool, model = fakes.problems(60), pool_lib.Pool(), fakes.Model()
    (groups, metrics) = run(problems, model, pool, steps=2)[1]
    inter = [g for g in groups if g.mode == "inter"]
    assert inter and metrics["lanpo/retrieval_similarity"] == pytest.approx(
        np.mean([g.info["similarity"] for g in inter])
    )
    for group in inter:
        (source,) = group.info["sources"]
        assert source != group.problem.id and group.info["similarity"] >= 0.2
        assert group.info["bare"] == prompts.plain(group.problem.text, SHORT)
    for source in {g.info["sources"][0] for g in inter}:
        users = [g for g in inter if g.info["sources"] == (source,)]
        assert pool.outcome(source).shown == 4 * len(users)
        assert pool.outcome(source).succeeded == sum(int(g.grades.correct.sum()) for g in users)
    assert model.principle in contents(next(p for p in model.calls[2][1] if p.key.endswith("/inter")))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_pool": 99}, "small_pool"),
        ({"retrieve": spec.resolve("tfidf(threshold=0.94)", retrieval)}, "nothing_similar"),
        ({"fits": lambda messages, n: "Hint" not in messages[0]["content"]}, "too_long"),
    ],
)
def test_a_mode_with_nothing_to_show_becomes_plain(options, reason):
    problems, pool, model = fakes.problems(40), pool_lib.Pool(), fakes.Model()
    run(problems, model, pool, modes={"plain": 1.0})
    groups, metrics = run(problems, model, pool, start=1, modes={"inter": 1.0}, **options)[0]
    assert {g.mode for g in groups} == {"plain"} and metrics[f"lanpo/fallback_{reason}"] == 40
    assert metrics["lanpo/fallback"] == 1.0 and all(g.info["drawn"] == ("inter",) for g in groups)
    assert all(len(p.messages) == 1 for p in model.calls[2][1])


def test_metric_names_are_the_same_at_every_step_and_values_are_numbers_or_none():
    stepped = run(fakes.problems(20), fakes.Model(), pool_lib.Pool(), steps=3)
    stepped += run(fakes.problems(20), fakes.Model(principle=""), pool_lib.Pool(), modes={"plain": 1.0})
    stepped += run(fakes.problems(20), fakes.Model(), pool_lib.Pool(), steps=2, lesson="raw")
    assert len({tuple(m) for _, m in stepped}) == 1
    required = "share_plain share_intra share_inter fallback reward_plain reward_intra reward_inter pool_size"
    required += " retrieval_similarity principle_tokens principle_rejected"
    assert {f"lanpo/{name}" for name in required.split()} <= set(stepped[0][1])
    for _, metrics in stepped:
        assert all(v is None or (isinstance(v, float) and np.isfinite(v)) for v in metrics.values())
    assert stepped[0][1]["lanpo/reward_intra"] is None and stepped[0][1]["lanpo/pool_size"] == 20


def test_rewards_by_mode_are_means_over_their_rollouts():
    groups, metrics = run(fakes.problems(60), fakes.Model(), pool_lib.Pool(), steps=2)[1]
    for mode in ("plain", "intra", "inter"):
        rewards = np.concatenate([g.grades.rewards for g in groups if g.mode == mode])
        assert metrics[f"lanpo/reward_{mode}"] == pytest.approx(rewards.mean())
    assert metrics["lanpo/tokens_rollouts"] == sum(len(c.tokens) for g in groups for c in g.generation.completions)


# Principles.


def test_only_right_unguided_solutions_are_summarised_and_again_when_old():
    problems, pool, model = fakes.problems(40), pool_lib.Pool(), fakes.Model()
    asked: dict[str, list[int]] = {}
    for step in range(8):
        model.calls.clear()
        groups, _ = run(problems, model, pool, start=step, principle_age=3)[0]
        solved = {g.problem.id for g in groups if g.mode == "plain" and g.grades.correct.any()}
        for prompt in (p for _, sent in model.calls for p in sent if p.key.endswith("/abstract")):
            id = prompt.key.removeprefix("train/").removesuffix("/abstract")
            asked.setdefault(id, []).append(step)
            assert id in solved and pool.entry(id).principle.step == step
            assert "RIGHT" in contents(prompt) and "WRONG" not in contents(prompt)
    gaps = np.concatenate([np.diff(steps) for steps in asked.values()])
    assert len(gaps) and gaps.min() == 3  # rewritten at the age of 3, not before


def test_truncated_solutions_teach_nothing():
    class Cut(fakes.Model):
        def _answer(self, prompt, call):
            made = super()._answer(prompt, call)
            return types.Generation(
                made.prompt_tokens, "", tuple(fakes.completion(c.text, truncated=True) for c in made.completions)
            )

    pool, model = pool_lib.Pool(), Cut()
    _, metrics = run(fakes.problems(9), model, pool)[0]
    assert len(model.calls) == 1 and metrics["lanpo/principle_written"] == 0 and len(pool) == 9


@pytest.mark.parametrize(
    ("principle", "reason"),
    [("", "empty"), ("long " * 30, "too_long"), ("I add and get RIGHT in call 1", "copied")],
)
def test_bad_principles_are_counted_by_reason_and_not_stored(principle, reason):
    pool, model = pool_lib.Pool(), fakes.Model(principle=principle)
    _, metrics = run(fakes.problems(9), model, pool)[0]
    asked = len(model.calls[1][1])
    assert metrics["lanpo/principle_rejected"] == metrics[f"lanpo/rejected_{reason}"] == asked > 0
    assert len(pool.index) == 0 and metrics["lanpo/principle_tokens"] is None
    assert metrics["lanpo/tokens_principles"] == asked * len(principle.split(" "))


def test_requests_that_do_not_fit_are_not_sent():
    pool, model = pool_lib.Pool(), fakes.Model()
    _, metrics = run(fakes.problems(9), model, pool, fits=lambda messages, n: False)[0]
    assert len(model.calls) == 1
    assert metrics["lanpo/principle_rejected"] == metrics["lanpo/rejected_unfit"] > 0


def test_what_budgets_cut_is_counted_and_marked():
    problems, pool = fakes.problems(60), pool_lib.Pool()
    model = fakes.Model(principle="Add the many parts to get to the whole of it.")
    run(problems, model, pool, attempt_tokens=3)
    groups, metrics = run(problems, model, pool, start=1, attempt_tokens=3, principle_tokens=5)[0]
    for mode, name in (("intra", "cut_attempts"), ("inter", "cut_principles")):
        own = [g for g in groups if g.mode == mode]
        assert metrics[f"lanpo/{name}"] == len(own) > 0
    rollouts = model.calls[2][1]
    attempts = {p.messages[-2]["content"] for p in rollouts if p.key.endswith("/intra")}
    assert attempts == {"I add and [...]", "I subtract and [...]"}
    assert all("\nAdd the many parts to [...]\n" in contents(p) for p in rollouts if p.key.endswith("/inter"))


def test_a_problem_met_twice_in_a_step_gets_other_samples():
    problem, pool, model = fakes.problems(1)[0], pool_lib.Pool(), fakes.Model()
    run([problem, problem], model, pool)
    assert [p.key for p in model.calls[0][1]] == ["train/story/0/plain", "train/story/0/plain#2"]
    assert pool.outcome("story/0").tried == 8 and len(model.calls[1][1]) == 1


def test_evaluation_problems_are_trained_on_but_never_kept():
    problems, pool, model = fakes.problems(20), pool_lib.Pool(), fakes.Model()
    pool.forbid([p.text for p in problems[:10]])
    _, metrics = run(problems, model, pool, steps=2)[1]
    assert len(pool) == 10 and metrics["lanpo/pool_refused"] >= 10
    kept = {f"train/story/{i}/abstract" for i in range(10, 20)}
    assert {p.key for _, sent in model.calls for p in sent if p.key.endswith("/abstract")} <= kept


# Modes drawn by each rollout.


def mixed(problems, model, pool, **options):
    return run(problems, model, pool, start=1, mix_level="rollout", **options)[0]


def test_every_rollout_draws_its_own_mode_and_a_problems_rollouts_stay_a_family():
    problems, pool, model = fakes.problems(100), pool_lib.Pool(), fakes.Model()
    run(problems, model, pool, modes={"plain": 1.0})
    groups, metrics = mixed(problems, model, pool, group=8)
    families = {}
    for group in groups:
        families.setdefault(group.family, []).append(group)
    assert len(families) == 100 and all(g.shared for g in groups)
    for family in families.values():
        assert len({g.problem.id for g in family}) == 1
        assert sum(len(g.generation.completions) for g in family) == 8
        modes = [g.mode for g in family]
        assert len(modes) == len(set(modes))  # one prompt a mode
    shares = [metrics[f"lanpo/share_{m}"] for m in ("plain", "intra", "inter")]
    assert np.abs(np.array(shares) - [0.5, 0.25, 0.25]).max() < 0.06  # 800 draws: three standard errors are .053
    sizes = {len(g.generation.completions) for g in groups}
    assert len(sizes) > 4 and metrics["lanpo/alone"] == 0.0
    apart, metrics = mixed(problems, fakes.Model(), pool, group=8, advantage_scope="per_mode")
    assert not any(g.shared for g in apart)
    assert metrics["lanpo/alone"] == sum(len(g.generation.completions) == 1 for g in apart) > 0


def test_rollouts_that_fall_back_join_the_plain_ones():
    problems, pool, model = fakes.problems(50), pool_lib.Pool(), fakes.Model()
    groups, metrics = mixed(problems, model, pool, group=8)
    assert [g.mode for g in groups] == ["plain"] * 50
    assert all(p.samples == 8 and p.key.endswith("/plain") for p in model.calls[0][1])
    assert metrics["lanpo/share_plain"] == 1.0 and metrics["lanpo/fallback"] == pytest.approx(0.5, abs=0.1)
    reasons = [metrics[f"lanpo/fallback_{name}"] for name in ("no_attempt", "small_pool")]
    assert min(reasons) > 40  # of 50 problems: nearly each has a rollout of either mode
    assert any(g.info["fallback"] == "small_pool, no_attempt" for g in groups)


def test_draws_of_rollouts_depend_on_nothing_but_seed_step_and_problem():
    problems, pools = fakes.problems(20), [pool_lib.Pool(), pool_lib.Pool()]
    for pool in pools:
        run(problems, fakes.Model(), pool, modes={"plain": 1.0})
    whole, _ = mixed(problems, fakes.Model(), pools[0])
    some, _ = mixed(problems[7:3:-1], fakes.Model(), pools[1])
    wanted = {p.id: {(g.mode, len(g.generation.completions)) for g in whole if g.problem.id == p.id} for p in problems}
    for problem in problems[7:3:-1]:
        assert {(g.mode, len(g.generation.completions)) for g in some if g.problem.id == problem.id} == wanted[
            problem.id
        ]


@pytest.mark.parametrize("mix_level", ["group", "rollout"])
def test_guidance_is_stripped_from_what_is_trained_not_from_what_is_sampled(mix_level):
    problems, pool, model = fakes.problems(40), pool_lib.Pool(), fakes.Model()
    run(problems, model, pool, modes={"plain": 1.0})

    def render(messages):
        return [len(m["content"]) for m in messages]

    given = {"start": 1, "mix_level": mix_level, "strip_guidance": True, "render": render}
    groups, _ = run(problems, model, pool, **given)[0]
    assert {g.mode for g in groups} == {"plain", "intra", "inter"}
    for group, prompt in zip(groups, model.calls[2][1], strict=True):
        bare = prompts.plain(group.problem.text, SHORT)
        if group.mode == "plain":
            assert group.prompt is None and not group.off_policy and prompt.messages == bare
        else:
            assert group.off_policy and group.prompt.tolist() == render(bare) and prompt.messages != bare
            assert group.trained_prompt is group.prompt
    groups, _ = run(problems, model, pool, **(given | {"start": 2, "strip_ratio": False}))[0]
    assert any(g.prompt is not None for g in groups) and not any(g.off_policy for g in groups)
    with pytest.raises(ValueError, match="give `render`"):
        run(problems, model, pool, strip_guidance=True)


# Honesty.

gold_words = st.text("bcdfgjkqvwxz0123456789", min_size=5, max_size=12).filter(lambda s: not s.isdigit())


@settings(max_examples=25, deadline=None)
@given(
    golds=st.lists(gold_words, min_size=12, max_size=12, unique=True),
    told=st.sets(st.integers(0, 11), max_size=3),
    style=st.sampled_from(sorted(prompts.STYLES)),
    layout=st.sampled_from(["turns", "text"]),
    lesson=st.sampled_from(guide.LESSONS),
    mix_level=st.sampled_from(guide.LEVELS),
    seed=st.integers(0, 99),
)
def test_no_honest_prompt_holds_a_gold_answer_or_a_reward(golds, told, style, layout, lesson, mix_level, seed):
    """Gold answers are strings found nowhere else; the model itself writes those in `told` (and may be shown them)."""
    stories = fakes.problems(12)
    problems = [types.Problem(p.id, p.text, g) for p, g in zip(stories, golds, strict=True)]
    model = fakes.Model(replies=["so alpha", "thus beta", *(f"it is {golds[i]} alpha" for i in told)])
    templates = prompts.Templates(style=style, layout=layout)

    def grade(owners, completions):
        correct = np.array(["alpha" in c.text for c in completions])
        rewards = np.where(correct, 0.7431, -0.2917).astype(np.float32)
        return types.Grades(rewards, correct, tuple("verdict" for _ in owners), {"mark": rewards})

    modes = {"plain": 0.4, "intra": 0.3, "inter": 0.3}
    run(problems, model, pool_lib.Pool(), steps=4, seed=seed, grade=grade, templates=templates, modes=modes,
        lesson=lesson, min_pool=1, principle_age=1, mix_level=mix_level)  # fmt: skip
    hidden = [g for i, g in enumerate(golds) if i not in told]
    sent = [p for _, call in model.calls for p in call]
    assert {p.key.rsplit("/")[-1] for p in sent} >= {"plain", "intra", "inter"}
    for prompt in sent:
        text = contents(prompt)
        assert not any(g in text for g in hidden)
        assert not any(
            word in text.lower() for word in ("0.7431", "0.74", "0.29", "reward", "verdict", "mark:", "fake")
        )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_shown_of_attempts_does_not_depend_on_rewards_or_golds(noise):
    """Non-interference: with any grader and any gold answers, plain and reflection prompts are the same."""
    rng = np.random.default_rng(noise)
    stories = fakes.problems(15)

    def grade(owners, completions):
        correct = rng.random(len(owners)) < rng.random()
        return types.Grades(rng.normal(size=len(owners)), correct, ("",) * len(owners), {})

    def rollouts(problems, grader):
        model = fakes.Model(principle="")
        model.calls, made = [], model._answer
        model._answer = lambda prompt, call: made(prompt, 0)  # replies know nothing of the number of calls
        run(problems, model, pool_lib.Pool(), steps=4, grade=grader, modes={"plain": 0.5, "intra": 0.5})
        return model.rollouts()

    other = [types.Problem(p.id, p.text, str(rng.integers(1000))) for p in stories]
    assert rollouts(stories, fakes.grade) == rollouts(other, grade)


def test_leak_shows_the_gold_answer_and_only_leak_does():
    problems = [types.Problem(p.id, p.text, f"zq{i}zq") for i, p in enumerate(fakes.problems(30))]
    pool, model = pool_lib.Pool(), fakes.Model()
    run(problems, model, pool, modes={"plain": 1.0})
    groups, metrics = run(problems, model, pool, start=1, modes={"plain": 0.5, "leak": 0.5})[0]
    assert metrics["lanpo/share_leak"] == pytest.approx(0.5, abs=0.3) and "lanpo/reward_leak" in metrics
    for group, prompt in zip(groups, model.calls[2][1], strict=True):
        assert (group.problem.answer in contents(prompt)) == (group.mode == "leak")


def test_raw_shows_whole_solutions_without_asking_for_principles():
    problems, pool, model = fakes.problems(30), pool_lib.Pool(), fakes.Model()
    stepped = run(problems, model, pool, steps=3, lesson="raw")
    assert len(model.calls) == 3 and stepped[0][1]["lanpo/tokens_principles"] == 0
    shown = [contents(p) for p in model.rollouts() if p.key.endswith("/inter")]
    assert shown and all("I add and get RIGHT" in text for text in shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": {"plain": 0.5, "intar": 0.5}}, "did you mean 'intra'"),
        ({"modes": {"plain": 0.5}}, "do not sum to 1"),
        ({"modes": {"plain": 1.5, "intra": -0.5}}, "do not sum to 1"),
        ({"modes": {}}, "do not sum to 1"),
        ({"lesson": "rwa"}, "there are: principle, raw"),
        ({"mix_level": "prompt"}, "mix_level 'prompt' is not known; there are: group, rollout"),
        ({"advantage_scope": "mode"}, "there are: shared, per_mode"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run(fakes.problems(1), fakes.Model(), pool_lib.Pool(), **options)


def test_episodes_are_named_in_config_strings_and_a_short_answer_is_an_error():
    episode = spec.resolve("lanpo(modes={'plain': 1.0}, group=2)", protocols.EPISODES)
    with pytest.raises(ValueError, match="0 generations for 3 prompts"):
        episode(fakes.problems(3), 0, 0, pool_lib.Pool(), lambda *a: [], fakes.grade, SHORT, fakes.truncate, fakes.fits)


def test_draws_are_uniform_and_shares_are_honoured():
    draws = np.array([guide.chance(0, 3, f"p{i}", "mode") for i in range(4000)])
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws, 10, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi-square, 9 degrees, p = .001
    assert abs(np.corrcoef(draws, [guide.chance(0, 4, f"p{i}", "mode") for i in range(4000)])[0, 1]) < 0.06
    modes = {"plain": 0.5, "intra": 0.25, "inter": 0.25}
    assert [guide.choose(modes, d) for d in (0.0, 0.24, 0.26, 0.49, 0.51, 0.999999)] == [
        "inter", "inter", "intra", "intra", "plain", "plain",
    ]  # fmt: skip
    assert guide.choose({"plain": 1 - 1e-9, "intra": 0.0}, 1 - 1e-12) == "plain"


def test_the_language_side_is_host_python():
    files = [ROOT / "episodes.py", *sorted((ROOT / "experience").glob("*.py"))]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & {"jax", "jaxlib", "flax", "optax", "torch"}, file
    source = (ROOT / "experience" / "guide.py").read_text()
    assert "outcome" not in source and source.count(".answer") == 1  # the leak
