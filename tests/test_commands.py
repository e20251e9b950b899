"""`python -m lanpo_jax.evaluate` and `python -m lanpo_jax.generate` on the checkpoint of a very small run."""

import json
import pathlib

import numpy as np
import pytest

from lanpo_jax import cli, evaluate, generate, sharding, sources, train
from tests.test_train import rows, small

ROOT = pathlib.Path(__file__).parent.parent


def even(problems, completions, tokens):
    """A reward that a model of random weights earns now and then: 1 for a text of even length."""
    return [1.0 - len(text) % 2 for text in completions]


@pytest.fixture(scope="module", autouse=True)
def one_device(mesh):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "make_mesh", lambda **sizes: mesh)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, one_device):
    """Two steps with whole solutions as lessons, so that the pool has something to show."""
    workdir = tmp_path_factory.mktemp("run")
    episode = "lanpo(modes={'plain': 1.0}, min_pool=1, attempt_tokens=48, principle_tokens=24, lesson='raw')"
    c = small(rollout__episode=episode, rollout__retriever="tfidf(threshold=0.0)")
    c.reward.functions = ("tests.test_commands.even",)
    c.steps = 2
    train.run(c, workdir)
    return workdir


@pytest.fixture
def questions(tmp_path):
    """Three problems, of which the second has no answer."""
    path = tmp_path / "questions.jsonl"
    asked = [{"problem": "3+4=?", "answer": "7"}, {"problem": "5+4=?"}, {"id": "own", "problem": "2+6=?", "answer": 8}]
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))
    return path


def flags(command, *arguments):
    values = command.define()
    cli.parse(values, ["command", *map(str, arguments)])
    return values


def answered(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_checkpoint_scores_as_its_run_logged(run, tmp_path, capsys):
    out = tmp_path / "scores.json"
    results = evaluate.run(flags(evaluate, f"--workdir={run}", f"--out={out}"))
    logged = rows(run)[-1]
    assert logged["val/addition/pool/guided"] > 0
    for result in results:
        for name, value in result.score.numbers().items():
            assert value == logged[name], name
    found = json.loads(out.read_text())
    assert found["model"] == f"{run}, step 2"
    assert [r["mode"] for r in found["results"]] == ["zero_shot", "self_correct", "pool"]
    for result in found["results"]:
        prefix = "val/addition" if result["mode"] == "zero_shot" else f"val/addition/{result['mode']}"
        assert result["mean@2"]["value"] == logged[f"{prefix}/mean@2"]
        assert result["mean@2"]["low"] <= result["mean@2"]["value"] <= result["mean@2"]["high"]
        assert len(result["problems"]) == 6
        assert np.isclose(np.mean([p["correct"] for p in result["problems"]]), result["mean@2"]["value"])
    assert any(p["sources"] for p in found["results"][2]["problems"])
    told = capsys.readouterr().out.splitlines()
    assert told[1].split() == ["set", "mean@2", "pass@2", "maj@2", "over", "zero-shot", "guided", "tokens", "problems"]
    assert told[2].startswith("addition  ")


def test_an_earlier_step_and_another_set(run, capsys):
    arguments = [f"--workdir={run}", "--step=1", "--modes=zero_shot", "--samples=1"]
    more = "more=addition(digits=1, count=3, seed=7, part='eval')"
    (result,) = evaluate.run(flags(evaluate, *arguments, "--set", more))
    assert (result.score.name, result.score.correct.shape) == ("more", (3, 1))
    assert "step 1: 1 samples" in capsys.readouterr().out


def test_a_run_leaves_its_pool_as_a_file_that_guides_as_the_pool_does(run):
    lines = answered(run / "pool.jsonl")
    assert lines and {"problem", "principle"} <= set(lines[0])
    own, given = (
        evaluate.run(flags(evaluate, f"--workdir={run}", "--modes=pool", *more))[1]
        for more in ([], [f"--pool={run / 'pool.jsonl'}"])
    )
    assert own.score.numbers() == given.score.numbers()
    assert own.score.guided.mean() > 0


@pytest.fixture
def published(run, monkeypatch):
    """Flags for a Hugging Face directory with the tokenizer of the run; overrides are read from sys.argv."""
    arguments = ["--config=configs/tiny.py", "--model=tests/golden/models/qwen3", "--samples=2"]
    arguments += [f"--config.model.tokenizer={run / 'tokenizer.model'}"]
    arguments += ["--config.data.prompt_limit=48", "--config.rollout.max_new_tokens=16"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    return arguments


def test_a_published_model_with_a_pool_file(published, run, questions, tmp_path):
    problems = "sums=addition(digits=1, count=4, part='eval')"
    plain, pooled = evaluate.run(
        flags(evaluate, *published, "--modes=pool", f"--pool={run / 'pool.jsonl'}", "--set", problems)
    )
    assert plain.score.correct.shape == (4, 2) and pooled.score.guided.mean() > 0
    out = tmp_path / "answers.jsonl"
    generate.run(flags(generate, *published, f"--problems={questions}", f"--out={out}"))
    assert answered(out)[0]["about"]["model"] == "tests/golden/models/qwen3"
    with pytest.raises(ValueError, match=r"The pool of .*qwen3 holds no principle; name another by --pool=FILE"):
        generate.run(flags(generate, *published, f"--problems={questions}", f"--out={out}", "--guided=pool"))


@pytest.mark.parametrize("guided", ["none", "pool", "self_correct"])
def test_rows_hold_what_was_shown_and_said(guided, run, questions, tmp_path, capsys):
    out = tmp_path / "answers.jsonl"
    generate.run(flags(generate, f"--workdir={run}", f"--problems={questions}", f"--out={out}", f"--guided={guided}"))
    first, second, third = found = answered(out)
    assert [r["id"] for r in found] == ["questions/0", "questions/1", "own"]
    assert first["gold"] == "7" and third["gold"] == "8" and "gold" not in second and "correct" not in second
    assert first["correct"] == [len(text) % 2 == 0 for text in first["completions"]]
    assert all(len(r[name]) == 2 for r in found for name in ("completions", "answers", "truncated"))
    assert first["about"]["guided"] == guided
    for row in found:
        if guided == "self_correct":
            assert len(row["first"]) == 2
            shown = [(text, prompt) for text, prompt in zip(row["first"], row["prompt"], strict=True) if text.strip()]
            assert all("again" in prompt for _, prompt in shown)
        elif guided == "pool" and row["sources"]:
            assert row["similarity"] > 0
            assert row["problem"] in row["prompt"] and len(row["prompt"]) > len(row["problem"]) + 4
        else:
            assert row["prompt"] == f"<s>{row['problem']} "
    assert guided != "pool" or any(r["sources"] for r in found)
    assert "of those with a gold answer: mean@2" in capsys.readouterr().out


def test_started_again_it_goes_on_where_the_file_ends(run, questions, tmp_path, capsys):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    arguments = [f"--workdir={run}", f"--problems={questions}"]
    generate.run(flags(generate, *arguments, f"--out={whole}"))
    lines = whole.read_text().splitlines(keepends=True)
    cut.write_text(lines[0] + lines[1][:40])  # killed while it wrote
    generate.run(flags(generate, *arguments, f"--out={cut}"))
    assert "2 problems to answer, 1 answered before" in capsys.readouterr().out
    assert cut.read_text() == whole.read_text()
    generate.run(flags(generate, *arguments, f"--out={whole}"))
    assert "0 problems to answer, 3 answered before" in capsys.readouterr().out
    assert whole.read_text() == "".join(lines)


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (None, ["--samples=3"], "was made with samples=2 and not 3"),
        (None, ["--guided=self_correct"], "was made with guided=none and not self_correct"),
        ('{"id": 1}\n{"id": 2}\n', [], ":1 is no row that this command wrote"),
    ],
)
def test_a_file_of_something_else_is_not_touched(content, more, words, run, questions, tmp_path):
    out, arguments = tmp_path / "answers.jsonl", [f"--workdir={run}", f"--problems={questions}"]
    if content is None:
        generate.run(flags(generate, *arguments, f"--out={out}"))
    else:
        out.write_text(content)
    before = out.read_text()
    with pytest.raises(ValueError, match=words):
        generate.run(flags(generate, *arguments, f"--out={out}", *more))
    assert out.read_text() == before


def test_a_row_of_another_problem_with_the_same_id_is_refused(run, questions, tmp_path):
    out, arguments = tmp_path / "answers.jsonl", [f"--workdir={run}", f"--problems={questions}"]
    generate.run(flags(generate, *arguments, f"--out={out}"))
    questions.write_text(questions.read_text().replace("3+4", "3+5"))
    with pytest.raises(ValueError, match="answers another problem with the id questions/0"):
        generate.run(flags(generate, *arguments, f"--out={out}"))


EVALUATE = [
    (["--workdir=RUN/none"], "There is no checkpoint in RUN/none; the folder has no checkpoints"),
    (["--workdir=RUN", "--step=9"], "There is no checkpoint of step 9 in RUN; there are: 1, 2"),
    (["--workdir=RUN", "--modes=pol"], "did you mean 'pool'"),
    (["--workdir=RUN", "--model=y"], "name two models"),
    (["--workdir=RUN", "--set", "file(path='x')"], "lacks its name"),
    (["--workdir=RUN", "--pool=nope.jsonl"], "There is no pool file nope.jsonl"),
    (["--workdir=RUN", "--out=no/x.json"], "lies in no, which is no folder"),
    (["--workdir=RUN", "--samples=0"], "--samples=0"),
    (["--workdir=RUN", "--tempreture=1"], "Did you mean: temperature"),
    (["--config=configs/tiny.py"], "A model of random weights has nothing to say"),
    (["--config=configs/tyni.py"], "There is no configuration file configs/tyni.py"),
    (["--config=configs/default.py", "--model=nowhere"], "There is no model 'nowhere'"),
    ([], "There is no model"),
    (["RUN"], "Unexpected argument"),
]
GENERATE = [
    (["--workdir=RUN", "--out=x.jsonl"], "--problems is missing"),
    (["--workdir=RUN", "--problems=nope.jsonl", "--out=x.jsonl"], "There is no problem file 'nope.jsonl'"),
    (["--workdir=RUN", "--problems=x.jsonl", "--out=x.jsonl", "--guided=maybe"], "--guided=maybe"),
    (["--workdir=RUN", "--problems=x.jsonl", "--out=no/x.jsonl"], "which is no folder"),
]


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [(evaluate, *case) for case in EVALUATE] + [(generate, *case) for case in GENERATE],
)
def test_bad_input_is_one_sentence(command, arguments, words, run):
    with pytest.raises(SystemExit) as found:
        command.main(["command", *(a.replace("RUN", str(run)) for a in arguments)])
    assert str(found.value).startswith("Error: ")
    assert words.replace("RUN", str(run)) in str(found.value)
    assert "\n" not in str(found.value)


def test_help_is_the_text_of_the_module(capsys):
    for command in (evaluate, generate):
        with pytest.raises(SystemExit):
            command.main(["command", "--help"])
        assert capsys.readouterr().out.strip() == command.__doc__.strip()


def test_problems_without_answers_are_for_answering_alone(questions):
    found = sources.file(path=str(questions), unanswered=True)
    assert [p.answer for p in found] == ["7", "", "8"]
    with pytest.raises(ValueError, match=r"questions\.jsonl:2"):
        sources.file(path=str(questions))
    questions.write_text('{"text": "3+4"}\n')
    with pytest.raises(ValueError, match="no problem column"):
        sources.file(path=str(questions), unanswered=True)
