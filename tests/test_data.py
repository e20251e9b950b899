"""Problem files, their order and hygiene."""

import collections
import csv
import json
import pathlib
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from lanpo_jax import data, sources, spec
from lanpo_jax.types import Problem

DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
GSM8K = {
    "question": "Natalia sold clips to 48 friends, then half as many. How many in all?",
    "answer": "She sold 48/2 = <<48/2=24>>24.\nIn all 48+24 = <<48+24=72>>72.\n#### 72",
}
MATH = {
    "problem": "What is $1+\\frac12$?",
    "level": "Level 1",
    "type": "Algebra",
    "solution": "First \\boxed{wrong}, then $\\boxed{\\frac{3}{2}}$.",
}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": DAPO_BEFORE + "What is $6 \\cdot 7$?" + DAPO_AFTER}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "42", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4"},
}


def write(folder: pathlib.Path, rows, name="x.jsonl") -> str:
    path = folder / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(path)


def problems(count: int) -> list[Problem]:
    return [Problem(f"p/{i}", f"What is {i}+{i}?", str(2 * i)) for i in range(count)]


@pytest.mark.parametrize(
    ("row", "text", "answer"),
    [
        (GSM8K, GSM8K["question"], "72"),
        (MATH, MATH["problem"], "\\frac{3}{2}"),
        (DAPO, "What is $6 \\cdot 7$?", "42"),
        ({"problem": "1+1?", "answer": "2"}, "1+1?", "2"),
        ({"problem": "1+1?", "answer": 2}, "1+1?", "2"),
    ],
)
def test_published_formats_are_found_by_column_names(tmp_path, row, text, answer):
    (found,) = data.load(f"file(path={write(tmp_path, [row])!r})")
    assert (found.text, found.answer) == (text, answer)


def test_what_graders_may_need_is_kept(tmp_path):
    (found,) = sources.file(path=write(tmp_path, [MATH]))
    assert found.extra["level"] == "Level 1" and found.extra["solution"] == MATH["solution"]
    (found,) = sources.file(path=write(tmp_path, [DAPO]))
    assert (found.id, found.source) == ("9a9b6eb4", "math_dapo")


def test_csv_json_and_parquet_hold_the_same_problems(tmp_path):
    rows = [{"problem": f"a, {i}\nb", "answer": str(i), "id": f"r{i}"} for i in range(3)]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer", "id"])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "x.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    expected = [(r["id"], r["problem"], r["answer"]) for r in rows]
    for name in ("x.csv", "x.json", "x.parquet", pathlib.Path(write(tmp_path, rows)).name):
        found = sources.file(path=str(tmp_path / name))
        assert [(p.id, p.text, p.answer) for p in found] == expected, name


def test_nested_parquet_columns(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([DAPO, DAPO]), tmp_path / "d.parquet")
    found = data.load(f"file(path={str(tmp_path / 'd.parquet')!r})")
    assert [p.answer for p in found] == ["42", "42"] and [p.id for p in found] == ["9a9b6eb4", "9a9b6eb4#2"]
    assert len(sources.file(path=str(tmp_path / "d.parquet"), distinct=True)) == 1


def test_columns_may_be_named_and_rows_limited(tmp_path):
    path = write(tmp_path, [{"problem": "no", "answer": "no", "q": f"q{i}", "a": i} for i in range(5)])
    found = sources.file(path=path, problem="q", answer="a", limit=2)
    assert [(p.text, p.answer) for p in found] == [("q0", "0"), ("q1", "1")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"problem": "x"', "not JSON"),
        ("[1, 2]", "list, not an object"),
        ({"problem": "x"}, "columns are problem"),
        ({"text": "x", "answer": "1"}, "columns are text, answer"),
        ({"problem": "", "answer": "1"}, "problem is empty"),
        ({"problem": "x", "answer": " "}, "answer is empty"),
        ({"problem": 3, "answer": "1"}, "int, not text"),
        ({"problem": "x", "answer": None}, "NoneType"),
        ({"problem": "x", "answer": True}, "bool"),
        ({"prompt": [{"role": "system", "content": "x"}], "answer": "1"}, "not text"),
        ({"problem": "x", "reward_model": {"style": "rule"}}, "NoneType"),
    ],
)
def test_malformed_rows_name_file_and_line_or_are_skipped(tmp_path, bad, message, caplog):
    good = {"problem": "1+1?", "answer": "2"}
    path = write(tmp_path, [good, "", bad, good])
    with pytest.raises(ValueError, match=r"x\.jsonl:3: .*" + message):
        sources.file(path=path)
    assert len(sources.file(path=path, strict=False)) == 2
    assert "1 of 3 rows" in caplog.text and ":3:" in caplog.text


def test_csv_with_a_missing_field_names_its_line(tmp_path):
    (tmp_path / "x.csv").write_text("problem,answer\n1+1?,2\n2+2?\n")
    with pytest.raises(ValueError, match=r"x\.csv:3: .*2 fields"):
        sources.file(path=str(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("spec_text", "error", "message"),
    [
        ("file(path='{}/none.jsonl')", FileNotFoundError, "no problem file"),
        ("file(path='{}/x.txt')", ValueError, "suffix '.txt'"),
        ("file(path='{}/empty.jsonl')", ValueError, "holds no problem"),
        ("file(path='{}/x.jsonl', problem='q')", ValueError, "no column 'q'; its columns are problem, answer"),
        ("file(path='{}/bad.parquet')", ValueError, "not a Parquet file"),
        ("file(path='{}/bad.json')", ValueError, "not JSON"),
        ("file(pth='x')", ValueError, "did you mean 'path'"),
        ("flie(path='x')", ValueError, "did you mean 'file'"),
    ],
)
def test_errors_are_one_sentence(tmp_path, spec_text, error, message):
    write(tmp_path, [{"problem": "1", "answer": "1"}])
    for name in ("x.txt", "empty.jsonl", "bad.parquet"):
        (tmp_path / name).write_text("")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(error, match=message) as caught:
        data.load(spec_text.format(tmp_path))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_do_not_stop_loading(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"problem": "caf\xe9?", "answer": "1"}\n')
    assert sources.file(path=str(tmp_path / "x.jsonl"))[0].text == "caf\ufffd?"


def test_ids_are_stable_and_made_unique(tmp_path):
    path = write(
        tmp_path, [{"problem": f"{i}", "answer": "1", "id": name} for i, name in enumerate(["a", "a", "a#2", "a"])]
    )
    ids = [p.id for p in data.load(f"file(path={path!r})")]
    assert ids == ["a", "a#3", "a#2", "a#4"]
    assert ids == [p.id for p in data.load(f"file(path={path!r})")]
    assert [p.id for p in sources.file(path=write(tmp_path, [GSM8K, GSM8K], "g.jsonl"))] == ["g/0", "g/1"]


def test_sources_are_joined_in_order():
    found = data.load("stories(count=3, seed=1)", "addition(count=2)")
    assert [p.source.split("/")[0] for p in found] == ["stories"] * 3 + ["addition2"] * 2


def test_each_epoch_holds_every_problem_once_across_borders():
    pool, size = problems(10), 4
    stream = [p.id for step in range(15) for p in data.batch(pool, step, size, seed=3)]  # 60 rows: 6 epochs
    for epoch in range(6):
        assert sorted(stream[10 * epoch : 10 * epoch + 10]) == sorted(p.id for p in pool)
    assert stream[:10] != stream[10:20], "epochs are reshuffled"


def test_order_needs_step_and_seed_alone():
    pool = problems(7)
    later = [data.batch(pool, step, 3, seed=5) for step in (6, 2, 6)]
    assert later[0] == later[2] == data.batch(pool, 6, 3, seed=5)
    assert [data.batch(pool, s, 7, seed=5) for s in range(3)] != [data.batch(pool, s, 7, seed=6) for s in range(3)]


def test_a_batch_may_be_larger_than_the_pool():
    counts = collections.Counter(p.id for p in data.batch(problems(3), 0, 9, seed=0))
    assert set(counts.values()) == {3}
    with pytest.raises(ValueError, match="no problems"):
        data.batch([], 0, 4, 0)


def test_resuming_at_an_epoch_border_goes_on_with_the_next_epoch():
    """verl 5725: 4 prompts, 2 a step, 2 epochs, saved at step 2; steps 3 and 4 hold all four again."""
    pool = problems(4)
    rest = [p.id for step in (2, 3) for p in data.batch(pool, step, 2, seed=1)]
    assert sorted(rest) == sorted(p.id for p in pool)


def test_training_rows_that_stand_in_an_evaluation_set_are_dropped():
    train = [
        Problem("same", "What is  $3.5 + 1{,}000$ ?", "x"),
        Problem("case", "HOW MANY apples, does Tom have?", "x"),
        Problem("number", "What is 35 + 1000?", "x"),
        Problem("sign", "What is x - 3?", "x"),
        Problem("new", "Something else", "x"),
    ]
    evaluation = [
        Problem("a", "what is 3.5 + 1{,}000?", "x"),
        Problem("b", "How many apples does Tom have", "x"),
        Problem("c", "What is x + 3?", "x"),
    ]
    kept, dropped = data.exclude(train, evaluation)
    assert [p.id for p in dropped] == ["same", "case"] and [p.id for p in kept] == ["number", "sign", "new"]


def test_train_and_test_of_gsm8k_share_nothing_but_a_set_shares_all_with_itself(shared):
    train, test = (data.load(f"file(path={str(shared / 'data' / f'gsm8k_{n}.jsonl')!r})") for n in ("train", "test"))
    assert len(train) == 7473 and len(test) == 1319
    assert not data.exclude(train, test)[1] and len(data.exclude(test, test)[1]) == 1319


def test_fingerprint_sees_texts_answers_and_order():
    pool = problems(5)
    changed = [*pool[:4], Problem("p/4", pool[4].text, "9")]
    prints = {data.fingerprint(p) for p in (pool, pool[::-1], pool[:4], changed)}
    assert len(prints) == 4 and data.fingerprint(pool) == data.fingerprint(problems(5))


def test_tfds_data_source_works_without_tensorflow_and_network(tmp_path):
    """In a process of its own, to see what gets imported."""
    script = f"""
import sys
from lanpo_jax import data
assert "tensorflow_datasets" not in sys.modules, "imported too early"
import tensorflow_datasets as tfds, pathlib
folder = pathlib.Path({str(tmp_path)!r}) / "tiny" / "1.0.0"
folder.mkdir(parents=True)
version = tfds.core.Version("1.0.0")
identity = tfds.core.DatasetIdentity(name="tiny", version=version, data_dir=str(folder), module_name="x")
features = tfds.features.FeaturesDict({{"question": tfds.features.Text(), "answer": tfds.features.Text()}})
writer = tfds.core.SequentialWriter(
    tfds.core.DatasetInfo(builder=identity, features=features), 10, file_format=tfds.core.FileFormat.ARRAY_RECORD
)
writer.initialize_splits(["train"])
rows = [{{"question": f"What is {{i}}+1?", "answer": f"So.\\n#### {{i + 1}}"}} for i in range(15)]
writer.add_examples({{"train": rows}})
writer.close_all()
found = data.load("tfds(name='tiny', split='train[:12]', data_dir={str(tmp_path)!r})")
assert [(p.text, p.answer) for p in found] == [(f"What is {{i}}+1?", str(i + 1)) for i in range(12)]
assert "tensorflow" not in sys.modules
for name, split in (("tinny", "train"), ("tiny", "test")):
    try:
        data.load(f"tfds(name={{name!r}}, split={{split!r}}, data_dir={str(tmp_path)!r})")
    except ValueError as error:
        assert "not readable as a prepared" in str(error) and chr(10) not in str(error), error
    else:
        raise AssertionError(name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_gym_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"pip install 'lanpo-jax\[gym\]'"):
        data.load("gym(name='basic_arithmetic', count=2)")


def test_gym_problems_carry_their_entry():
    pytest.importorskip("reasoning_gym")
    found = data.load("gym(name='basic_arithmetic', count=3, seed=1)")
    assert found == data.load("gym(name='basic_arithmetic', count=3, seed=1)")
    assert all(p.extra["entry"]["question"] == p.text for p in found)
    with pytest.raises(ValueError, match="cannot make data set"):
        data.load("gym(name='nothing')")


def test_every_source_is_bound_by_keywords():
    for name, source in data.SOURCES.items():
        assert spec.options(source), name


def test_overlong_problems_are_dropped_cut_or_refused():
    problems = data.load("addition(digits=6, count=3)")

    def fit(limit, policy):
        return data.within(problems, length=len, shorten=lambda t, n: t[:-n], limit=limit, policy=policy)

    assert fit(max(len(p.text) for p in problems), "error") == (problems, 0)
    assert fit(5, "drop") == ([], 3)
    cut, over = fit(5, "truncate")
    assert [p.text for p in cut] == [p.text[:5] for p in problems]
    assert over == 3
    assert fit(0, "truncate") == ([], 3)
    with pytest.raises(ValueError, match=r"data\.prompt_limit=5"):
        fit(5, "error")


def test_hints_of_the_data_are_kept_for_scaffolds(tmp_path):
    hints = ["Think of heaps.", "Add the two."]
    path = tmp_path / "hinted.jsonl"
    path.write_text(json.dumps({"problem": "1+1=?", "answer": "2", "hints": hints}) + "\n")
    (problem,) = data.load(f"file(path='{path}')")
    assert problem.extra["hints"] == hints
