r"""Exact comparison of two answers, without symbolic algebra: right, wrong, or left open.

Both answers are normalised, read as small trees (`trees`) and compared. Policies:

* An integer as gold wants a numeral: `8/4`, `2^3` or `123*456` restate a problem, they do not answer it. Other golds
  accept every equal value, and decimals only if exact or written to twelve digits.
* A percent sign may be missing or be spelled on either side (50 = 50\%, 0.5 = 50\%), a factor of one hundred is never
  forgiven. A unit may be missing, but two different known units differ.
* Lists without order are sets. One of several values, or several for one, is wrong.
* Nothing equals an empty answer.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from lanpo_jax.rewards import algebra, functions, normal, trees, units

INTEGER = re.compile(r"([-+]?)\s*([1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.0*)?")
LONGEST_INTEGER = 200  # characters of an integer that is converted; longer ones are compared as digits
LETTER = re.compile(r"\(?\s*([A-J])\s*\)?")
LABEL = re.compile(r"^(?:\\text ?\{ ?)?\([A-E]\) ?\}? ?(?=-?\$?\d|\\frac)")  # "(B) 42", where 42 is asked for
CHOICE = re.compile(  # with the text of the choice, but not with another letter: (A) or (B)
    r"\(?\s*([A-Ja-j])\s*\)?|\(?\s*([A-J])\s*[.:)](?!\s*[-+*/^=,])(?!.*(?:\(|\b(?:or|and)\s+)[A-J]\b).*", re.DOTALL
)
UNEVALUATED = re.compile(r"\\(?:int|iint|oint|sum|prod|lim|bigcup|bigcap)(?![a-z])")


def settle(prediction: str, gold: str) -> tuple[str, str] | None:
    """("right" | "wrong" | "unknown", reason), or None if it takes symbolic algebra to tell."""
    prediction, gold = prediction.strip(), gold.strip()
    if not gold:
        return "unknown", "the gold answer is empty"
    if not prediction:
        return "wrong", "empty answer"
    digits = _digits(gold)
    if digits is not None and (found := _digits(prediction)) is not None:
        return _verdict(found == digits, "integers")
    if len(prediction) > trees.LONGEST and len(prediction) > 4 * len(gold):
        return "wrong", f"an answer of {len(prediction)} characters"
    p = normal.normalise(prediction)
    if digits is not None and len(digits) < LONGEST_INTEGER:
        p = LABEL.sub("", p) if "mod" not in p else trees.residue(p)
        return _integer(p, (Fraction(int(digits)), "", False)) if p else ("wrong", "empty answer")
    g = _gold_text(gold)
    if not p or not g:
        return ("wrong", "empty answer") if g else ("unknown", "the gold answer is empty")
    if p.replace(" ", "") == g.replace(" ", ""):
        return "right", "same text"
    if settled := _choice(p, g) or _text(p, g):
        return settled
    p = LABEL.sub("", p)
    return _number(p, g) or _trees(p, g)


def readable(gold: str) -> bool:
    """Whether a gold answer is read exactly, so that any answer to it can be judged here."""
    text = normal.normalise(gold)
    if not text:
        return False
    return trees.is_text(text) or bool(LETTER.fullmatch(trees.plain(text))) or trees.is_exact(trees.tree(text))


@functools.lru_cache(maxsize=4096)
def _gold_text(gold: str) -> str:
    return normal.normalise(gold)


def _digits(text: str) -> str | None:
    """A plain integer of any length by its sign and digits, without leading zeros, or None."""
    if text.isdigit() and text.isascii():
        return text.lstrip("0") or "0"
    if not (match := INTEGER.fullmatch(text)):
        return None
    digits = match[2].replace(",", "").lstrip("0")
    return f"-{digits}" if match[1] == "-" and digits else digits or "0"


def _verdict(equal: bool, what: str) -> tuple[str, str]:
    return ("right", f"equal {what}") if equal else ("wrong", f"different {what}")


# Words and letters.


def _choice(p: str, g: str) -> tuple[str, str] | None:
    letter = LETTER.fullmatch(trees.plain(g))
    if not letter:
        return None
    p = re.sub(r"^(?:option|choice|answer)\s+", "", trees.plain(p), flags=re.IGNORECASE)
    chosen = CHOICE.fullmatch(p)
    return _verdict(bool(chosen) and (chosen[1] or chosen[2]).upper() == letter[1], "choice")


def _text(p: str, g: str) -> tuple[str, str] | None:
    if not trees.is_text(g):
        return None

    def words(text: str) -> str:
        found = re.findall(r"[a-z0-9']+", trees.plain(text).lower())
        kept = [w for w in found if w not in ("the", "a", "an")] or found
        return "".join(w[:-1] if len(w) > 3 and w.endswith("s") else w for w in kept)

    return _verdict(words(p) == words(g), "words")


# Integers.


def _number(p: str, g: str) -> tuple[str, str] | None:
    gold = trees.numeral(g)
    return None if gold is None or gold[0].denominator != 1 or gold[2] else _integer(p, gold)


def _integer(p: str, gold: tuple[Fraction, str, bool]) -> tuple[str, str]:
    found = trees.numeral(p)
    if found is None:
        return "wrong", "not a number, as the gold answer is"
    if units.differ(found[1], gold[1]):
        return "wrong", f"unit {found[1]}, not {gold[1]}"
    values = {found[0], found[0] / 100} if found[2] else {found[0]}
    return _verdict(gold[0] in values, "numbers")


# Trees.


def _trees(p: str, g: str) -> tuple[str, str] | None:
    gold = _gold_tree(g)
    found = trees.tree(p)
    try:
        equal = same(found, gold)
    except algebra.Unsettled:
        equal = None
    if equal is not None:
        return _verdict(equal, gold[0] if gold[0] == found[0] else f"kinds: {found[0]} and {gold[0]}")
    if gold[0] == "value" and functions.approximate(gold[1]) is not None and UNEVALUATED.search(p):
        return "wrong", "not evaluated"
    return None


@functools.lru_cache(maxsize=4096)
def _gold_tree(text: str) -> trees.Tree:
    return trees.tree(text)


# Equality of trees: True, False, or None if a raw leaf decides.


def same(p: trees.Tree, g: trees.Tree) -> bool | None:
    """Whether the prediction's tree says the same as the gold's."""
    if p[0] == "equation" or g[0] == "equation":
        return _same_equation(p, g)
    if p[0] == "list" and len(p[1]) == 1 and g[0] != "list":
        return same(p[1][0], g)
    if g[0] == "list" and len(g[1]) == 1 and p[0] != "list":
        return same(p, g[1][0])
    if p[0] != g[0]:
        return _same_kinds(p, g)
    if p[0] in ("raw", "undefined"):
        return True if p[1].replace(" ", "") == g[1].replace(" ", "") else None
    if p[0] == "value":
        return _same_value(p, g)
    if p[0] in ("list", "union"):
        return _same_set(p[1], g[1])
    if p[0] in ("sequence", "matrix", "determinant"):
        return p[1] == g[1] and _all(p[2], g[2])
    if p[0] == "ratio":
        return _same_ratio(p[1], g[1])
    if p[0] == "relation":
        return _same_relation(p, g)
    if p[0] == "time":
        return p[1:3] == g[1:3] and (p[3] == g[3] or not p[3] or not g[3])
    return p == g


def _same_kinds(p: trees.Tree, g: trees.Tree) -> bool | None:
    kinds = {p[0], g[0]}
    if p[0] == "undefined":
        return False if trees.is_exact(g) else None
    if g[0] == "undefined" or kinds == {"modulo", "value"}:  # 5 (mod 7) and 5 are left open
        return None
    if "ratio" in kinds and kinds <= {"ratio", "time", "value"}:
        return False if _ratio_differs(p, g) else None
    if kinds == {"list", "sequence"}:  # (1, 2) and 1, 2: the brackets were left out
        pair, items = (p[2], g[1]) if p[0] == "sequence" else (g[2], p[1])
        equal = _all(pair, items)
        return equal if "()" in (p[1], g[1]) or equal is False else None
    if kinds == {"list", "relation"} and any(node[0] == "value" for node in (p if p[0] == "list" else g)[1]):
        return False
    if kinds == {"list", "union"}:  # x < 2 or x > 3
        return _same_set(p[1], g[1]) or None
    if kinds == {"matrix", "sequence"}:  # a vector as a column or in round brackets
        vector, row = (p, g) if p[0] == "matrix" else (g, p)
        return row[1] == "()" and 1 in vector[1] and _all(row[2], vector[2])
    if (kinds & {"list", "value", "word", "matrix"} and "union" in kinds) or kinds == {"value", "matrix"}:
        return False
    if kinds <= {"list", "matrix", "ratio"}:  # 3, 4 and 3:4 are left open
        a, b = (node[1] if node[0] != "matrix" else node[2] for node in (p, g))
        return False if _all(a, b) is False else None
    if "raw" in kinds or kinds & {"matrix", "determinant", "union", "relation", "ratio"}:
        return None
    return False


def _all(a: tuple[trees.Tree, ...], b: tuple[trees.Tree, ...]) -> bool | None:
    if len(a) != len(b):
        return False
    found = [same(x, y) for x, y in zip(a, b)]
    return False if False in found else None if None in found else True


def _same_set(a: tuple[trees.Tree, ...], b: tuple[trees.Tree, ...]) -> bool | None:
    """Every item has its like on the other side."""
    if len(a) * len(b) > 1024:
        return None
    table = [[same(x, y) for y in b] for x in a]
    lines = table + [list(column) for column in zip(*table)] if a and b else [[False]] * (len(a) + len(b))
    best = [True if True in line else None if None in line else False for line in lines]
    return False if False in best else None if None in best else True


def _same_value(p: trees.Tree, g: trees.Tree) -> bool | None:
    if units.differ(p[2], g[2]):
        return False
    candidates = [p[1]]
    if p[3] != g[3]:  # one percent sign: 50% is 50 and .5
        candidates.append(algebra.times(p[1], algebra.constant(Fraction(1, 100) if p[3] else 100)))
    if any(c == g[1] for c in candidates) or _written_out(p[1], p[4], g[1]):
        return True
    if not functions.is_opaque(*candidates, g[1]):
        return False
    return False if all(functions.refuted(c, g[1]) for c in candidates) else None


def _written_out(value: algebra.Value, text: str, gold: algebra.Value) -> bool:
    """Whether a decimal of at least twelve significant digits is the gold answer to its last digit."""
    digits = re.fullmatch(r"-?(\d*)\.(\d+)", text)
    if not digits or len((digits[1] + digits[2]).lstrip("0")) < 12:
        return False
    exact, shown = functions.approximate(gold), functions.approximate(value)
    if exact is None or shown is None:
        return False
    return abs(exact - shown) <= max(10.0 ** -len(digits[2]), 1e-15 * abs(exact))


def _same_ratio(a: tuple[trees.Tree, ...], b: tuple[trees.Tree, ...]) -> bool | None:
    """a:b = c:d if a·d = b·c, and so on."""
    equal = _all(a, b)
    if equal is not False or len(a) != len(b) or any(node[0] != "value" for node in a + b):
        return equal
    if functions.is_opaque(*(node[1] for node in a + b)):
        return None
    return all(algebra.times(x[1], b[0][1]) == algebra.times(a[0][1], y[1]) for x, y in zip(a, b))


def _ratio_differs(p: trees.Tree, g: trees.Tree) -> bool:
    """Whether a ratio is certainly not the time or the number beside it; 3:4 and 3/4 are left open."""
    a, b = (_parts(node) for node in (p, g))
    return bool(a and b) and _same_ratio(a, b) is False


def _parts(node: trees.Tree) -> tuple[trees.Tree, ...]:
    """The parts of a ratio; a time as hours : minutes, a number as itself : 1."""
    if node[0] == "ratio":
        return node[1]
    numbers = [algebra.constant(n) for n in node[1:3]] if node[0] == "time" else [node[1], algebra.constant(1)]
    return tuple(("value", number, "", False, "") for number in numbers)


def _same_relation(p: trees.Tree, g: trees.Tree) -> bool | None:
    factor = algebra.ratio(p[2], g[2])
    if factor is None:
        return functions.proportional(p[2], g[2])
    return (trees.FLIP[p[1]] if factor < 0 else p[1]) == g[1]


def _same_equation(p: trees.Tree, g: trees.Tree) -> bool | None:
    """x = 5 is 5; two equations agree if their right sides do, or if one is a multiple of the other."""
    if p[0] != g[0]:
        equation, other = (p, g) if p[0] == "equation" else (g, p)
        if re.fullmatch(trees.NAME, equation[1]) or (equation is p and _is_number(p[2])):
            return same(p[3], g) if equation is p else same(p, g[3])
        if trees.is_exact(other) and same(other, equation[3]) is False:
            return False
        return False if all(trees.is_exact(node) for node in (*equation[2:4], other)) else None
    if p[1].replace(" ", "") == g[1].replace(" ", ""):
        return same(p[3], g[3])
    if any(side[0] != "value" for side in (p[2], p[3], g[2], g[3])):
        return None
    return functions.proportional(algebra.minus(p[2][1], p[3][1]), algebra.minus(g[2][1], g[3][1]))


def _is_number(node: trees.Tree) -> bool:
    return node[0] == "value" and functions.approximate(node[1]) is not None
