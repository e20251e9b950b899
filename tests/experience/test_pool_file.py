"""A pool as a file: what a run leaves, what people write by hand, and what is wrong with a line."""

import json

import pytest

from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import pool_file, retrieval
from tests import fakes


def full():
    """Five problems, four of them with an attempt and a principle, one of those shown to others."""
    pool, problems = pool_lib.Pool(), fakes.problems(5)
    pool.admit([(p.id, p.text) for p in problems])
    for i in (3, 0, 2, 1):
        pool.add_attempts(f"story/{i}", [pool_lib.Attempt("secret attempt", 2, 1)], [0.7431], [True])
        pool.set_principle(f"story/{i}", pool_lib.Principle(f"Lesson {i}: π ≈ 3\nand add.", 5, i))
    pool.record_shown("story/2", 8, 3)
    return pool


def test_read_back_it_answers_as_the_original(tmp_path):
    pool = full()
    pool_file.write(pool, tmp_path / "pool.jsonl")
    found = pool_file.read(tmp_path / "pool.jsonl")
    queries = [retrieval.Query(p.id, p.text, p.id) for p in fakes.problems(12)]
    for retrieve in (retrieval.tfidf, retrieval.random):
        assert retrieve(found.index, queries) == retrieve(pool.index, queries)
    assert [found.entry(id).principle for id in found.ids()] == [pool.entry(id).principle for id in pool.index.ids()]
    assert [p.name for p in tmp_path.iterdir()] == ["pool.jsonl"]


def test_a_line_per_principle_without_rewards_and_attempts(tmp_path):
    pool_file.write(full(), tmp_path / "pool.jsonl")
    text = (tmp_path / "pool.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [r["id"] for r in rows] == ["story/3", "story/0", "story/2", "story/1"]
    assert (rows[2]["shown"], rows[2]["succeeded"]) == (8, 3)
    assert "secret" not in text and "0.74" not in text
    assert "π ≈ 3" in text


def test_two_columns_suffice_by_hand(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "3+4=?", "principle": "Add."}\n\n{"problem": "3*4=?", "principle": "Multiply."}\n')
    pool = pool_file.read(path)
    assert pool.ids() == ["mine.jsonl:1", "mine.jsonl:3"]
    assert len(pool.index) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "p.jsonl:2: it is not JSON"),
        ("[1]", "p.jsonl:2: it is a JSON list"),
        ('{"problem": "x", "text": "y"}', "p.jsonl:2: 'principle' is missing or empty"),
        ('{"problem": " ", "principle": "y"}', "p.jsonl:2: 'problem' is missing or empty"),
        ('{"problem": "x", "principle": "y", "step": "two"}', "tokens and step are whole numbers"),
        ('{"problem": "x", "principle": "y", "id": "a"}', "more than one line with the id 'a'"),
    ],
)
def test_a_wrong_line_is_named(line, words, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"problem": "1+1", "principle": "add", "id": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=words) as found:
        pool_file.read(tmp_path / "p.jsonl")
    assert "\n" not in str(found.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no pool file .*nope.jsonl; a run leaves one as pool.jsonl"):
        pool_file.read(tmp_path / "nope.jsonl")
