r"""Exact comparison of two answers, without symbolic algebra: right, wrong, or left open.

An answer is read as a small tree: ("value", ...) at the leaves; lists, tuples and intervals, unions, matrices,
equations, inequalities, ratios above them. Policies:

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
from typing import Any

from lanpo_jax.rewards import algebra, normal, units

Tree = tuple[Any, ...]

LONGEST = 1000  # characters of an answer that is read at all; a longer one must equal the gold as a text
INTEGER = re.compile(r"[-+]?\s*\d+")
NUMERAL = re.compile(r"[-+]?\s*(?:\d+\.?\d*|\.\d+)")
SCIENTIFIC = re.compile(
    r"([-+]?\s*(?:\d+\.?\d*|\.\d+))\s*(?:\*\s*10\s*\^\s*\{?\s*([-+]?\s*\d{1,3})\s*\}?|[eE]([-+]?\d{1,3}))"
)
POWER_OF_TEN = re.compile(r"10\s*\^\s*\{?\s*(\d{1,3})\s*\}?")
LETTER = re.compile(r"\(?\s*([A-J])\s*\)?")
CHOICE = re.compile(r"\(?\s*([A-Ja-j])\s*\)?|\(?\s*([A-J])\s*[.:)]\s*.*", re.DOTALL)
WORDS = re.compile(r"[A-Za-z][A-Za-z' .-]*[A-Za-z.]")
WRAPPED = re.compile(r"\\text ?\{([^{}]*)\}")
NAME = r"(?:\\?[A-Za-z]+'*|\\text ?\{[^{}]*\})(?:_\{[^{}]*\}|_\w)?(?: ?\( ?[a-z](?:, ?[a-z])* ?\))?"
ASSIGNED = re.compile(rf"({NAME}) ?(?:=|\\in(?![a-z])) ?(.*)", re.DOTALL)
RELATION = re.compile(r"\\leq(?![a-z])|\\geq(?![a-z])|\\neq(?![a-z])|<|>")
FLIP = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", r"\neq": r"\neq"}
MATRIX = re.compile(r"\\begin ?\{([pbBv]?matrix|smallmatrix|array)\}(?: ?\{[lcr| ]*\})?(.*?)\\end ?\{\1\}", re.DOTALL)
UNEVALUATED = re.compile(r"\\(?:int|iint|oint|sum|prod|lim|bigcup|bigcap)(?![a-z])")
CLOSING = {"(": ")", "[": "]", "{": "}"}
NUMBER_WORDS = {"pi", "infty", "infinity", "inf", "nan"}


def settle(prediction: str, gold: str) -> tuple[str, str] | None:
    """("right" | "wrong" | "unknown", reason), or None if it takes symbolic algebra to tell."""
    if not gold.strip():
        return "unknown", "the gold answer is empty"
    if not prediction.strip():
        return "wrong", "empty answer"
    if (quick := _numerals(prediction.strip(), gold.strip())) is not None:
        return quick
    if len(prediction) > LONGEST and len(prediction) > 4 * len(gold):
        return "wrong", f"an answer of {len(prediction)} characters"
    p, g = normal.normalise(prediction), _normal_gold(gold)
    if not p or not g:
        return ("wrong", "empty answer") if g else ("unknown", "the gold answer is empty")
    if p.replace(" ", "") == g.replace(" ", ""):
        return "right", "same text"
    return _choice(p, g) or _text(p, g) or _integer(p, g) or _trees(p, g)


def readable(gold: str) -> bool:
    """Whether a gold answer is read exactly, so that any answer to it can be judged here."""
    text = normal.normalise(gold)
    return bool(text) and (_is_text(text) or bool(LETTER.fullmatch(_plain(text))) or is_exact(tree(text)))


@functools.lru_cache(maxsize=4096)
def _normal_gold(gold: str) -> str:
    return normal.normalise(gold)


def _numerals(p: str, g: str) -> tuple[str, str] | None:
    """Two plain integers of any length, compared as digits."""
    if not (INTEGER.fullmatch(p) and INTEGER.fullmatch(g) and p.isascii()):
        return None
    return _verdict(_digits(p) == _digits(g), "integers")


def _digits(text: str) -> str:
    digits = text.lstrip("+- \t\n").lstrip("0")
    return ("-" if text.startswith("-") and digits else "") + digits


def _verdict(equal: bool, what: str) -> tuple[str, str]:
    return ("right", f"equal {what}") if equal else ("wrong", f"different {what}")


# Words and letters.


def _plain(text: str) -> str:
    """Without text wrappers and quotes."""
    return re.sub(r"\\text ?\{([^{}]*)\}", r"\1", text).replace('"', "").strip(" .,;{}")


def _choice(p: str, g: str) -> tuple[str, str] | None:
    letter = LETTER.fullmatch(_plain(g))
    if not letter:
        return None
    p = re.sub(r"^(?:option|choice|answer)\s+", "", _plain(p), flags=re.IGNORECASE)
    chosen = CHOICE.fullmatch(p) or re.fullmatch(r"\(\s*([A-J])\s*\)()\s*.*", p, re.DOTALL)
    return _verdict(bool(chosen) and (chosen[1] or chosen[2]).upper() == letter[1], "choice")


def _is_text(text: str) -> bool:
    """Words rather than mathematics: "even", "October 30" in a text wrapper, but neither "ab" nor "pi"."""
    if wrapped := WRAPPED.fullmatch(text):
        return bool(re.match(r"[^\d,;(]*[A-Za-z]{2}[^,;=]*$", wrapped[1])) and " and " not in wrapped[1]
    plain = _plain(text)
    if not WORDS.fullmatch(plain) or plain.lower() in NUMBER_WORDS:
        return False
    return "\\text" in text or bool(re.search(r"[A-Za-z]{3}", plain))


def _text(p: str, g: str) -> tuple[str, str] | None:
    if not _is_text(g):
        return None

    def words(text: str) -> list[str]:
        found = re.findall(r"[a-z0-9']+", _plain(text).lower())
        return [w for w in found if w not in ("the", "a", "an")] or found

    return _verdict(words(p) == words(g), "words")


# Integers.


def numeral(text: str) -> tuple[Fraction, str, bool] | None:
    """(number, unit, whether a percent sign follows) of a written number, or None for anything to be worked out."""
    text = _assigned(text)
    value, unit = units.split(text)
    percent = value.endswith("%")
    value = value.removesuffix("%").strip().removeprefix("{").removesuffix("}")
    if len(value) > 200:
        return None
    if NUMERAL.fullmatch(value):
        return Fraction(value.replace(" ", "").rstrip(".")), unit, percent
    if match := SCIENTIFIC.fullmatch(value):
        power = int((match[2] or match[3]).replace(" ", ""))
        return Fraction(match[1].replace(" ", "").rstrip(".")) * Fraction(10) ** power, unit, percent
    match = POWER_OF_TEN.fullmatch(value)
    return (Fraction(10) ** int(match[1]), unit, percent) if match else None


def _assigned(text: str) -> str:
    """The right side of x = 5, and of 3 + 4 = 7."""
    match = re.fullmatch(rf"(?:{NAME}|[-+*/ ()\d.]+) ?= ?([^=]+)", text)
    return match[1] if match else text


def _integer(p: str, g: str) -> tuple[str, str] | None:
    gold = numeral(g)
    if gold is None or gold[0].denominator != 1 or not re.search(r"\d", g) or gold[2]:
        return None
    found = numeral(p)
    if found is None:
        return "wrong", "not a number, as the gold answer is"
    if units.differ(found[1], gold[1]):
        return "wrong", f"unit {found[1]}, not {gold[1]}"
    values = {found[0], found[0] / 100} if found[2] else {found[0]}
    return _verdict(gold[0] in values, "numbers")


# Trees.


def _trees(p: str, g: str) -> tuple[str, str] | None:
    gold = _tree_of_gold(g)
    found = tree(p)
    equal = same(found, gold)
    if equal is not None:
        return _verdict(equal, gold[0] if gold[0] == found[0] else f"kinds: {found[0]} and {gold[0]}")
    if gold[0] == "value" and algebra.approximate(gold[1]) is not None and UNEVALUATED.search(p):
        return "wrong", "not evaluated"
    return None


@functools.lru_cache(maxsize=4096)
def _tree_of_gold(text: str) -> Tree:
    return tree(text)


def is_exact(node: Tree) -> bool:
    """Whether all leaves of a tree were read exactly."""
    if node[0] == "raw":
        return False
    return all(is_exact(n) for n in node[1:] if isinstance(n, tuple) and n and isinstance(n[0], str)) and all(
        is_exact(m) for n in node[1:] if isinstance(n, tuple) and n and isinstance(n[0], tuple) for m in n
    )


def tree(text: str, depth: int = 0) -> Tree:
    """Reads a normalised answer. What cannot be read exactly becomes ("raw", text)."""
    text = text.strip()
    if depth > 8 or len(text) > LONGEST:
        return ("raw", text)
    if (wrapped := WRAPPED.fullmatch(text)) and not _is_text(text):
        text = wrapped[1].strip()
    for read in (_matrix, _list, _union, _equation, _bracketed, _relation, _plus_minus, _ratio, _special):
        if (node := read(text, depth)) is not None:
            return node
    return _leaf(text)


def _split(text: str, separators: re.Pattern[str]) -> list[str]:
    """Splits at separators that stand outside of all brackets."""
    parts, start, depth, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if character == "\\" and text[position + 1 : position + 2] in "{}":
            depth += 1 if text[position + 1 : position + 2] == "{" else -1
            position += 2
            continue
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and (match := separators.match(text, position)) and match.end() > position:
            parts.append(text[start:position].strip())
            start = position = match.end()
            continue
        position += 1
    return [*parts, text[start:].strip()]


LIST = re.compile(r",? ?\\text ?\{,? ?(?:and|or),? ?\}|,? (?:and|or) |[,;](?: ?(?:and|or) )?")
CUP = re.compile(r"\\cup(?![a-z])|\\bigcup(?![a-z])| U ")
COLON = re.compile(r":")
EQUALS = re.compile(r"=")


def _matrix(text: str, depth: int) -> Tree | None:
    match = MATRIX.fullmatch(text) or MATRIX.fullmatch(_unbracketed(text))
    if not match:
        return None
    rows = [r for r in re.split(r"\\\\", match[2]) if r.strip()]
    cells = tuple(tuple(tree(c, depth + 1) for c in row.split("&")) for row in rows)
    kind = "determinant" if match[1] == "vmatrix" else "matrix"
    return (kind, (len(cells), max(map(len, cells), default=0)), tuple(c for row in cells for c in row))


def _unbracketed(text: str) -> str:
    return text[1:-1].strip() if text[:1] in ("(", "[") and text[-1:] in (")", "]") else text


def _list(text: str, depth: int) -> Tree | None:
    parts = _split(text, LIST)
    if len(parts) == 1:
        return None
    if len(parts) > 64:
        return ("raw", text)
    parts = [p for p in parts if p]
    if len(parts) < 2:
        return tree(parts[0], depth + 1) if parts else ("raw", text)
    names = [match[1] if (match := ASSIGNED.fullmatch(p)) else "" for p in parts]
    if names[0] and (not any(names[1:]) or len(set(names)) == 1):  # n = 1, 2, 3 and x = 1, x = 2
        parts = [match[2] if (match := ASSIGNED.fullmatch(p)) else p for p in parts]
    items = []
    for part in parts:
        node = tree(part, depth + 1)
        items += node[1] if node[0] == "list" else [node]
    return ("list", tuple(items))


def _union(text: str, depth: int) -> Tree | None:
    parts = _split(text, CUP)
    return ("union", tuple(tree(p, depth + 1) for p in parts)) if len(parts) > 1 else None


def _equation(text: str, depth: int) -> Tree | None:
    if RELATION.search(text) and "=" not in text:
        return None
    if match := re.fullmatch(rf"({NAME}) ?\\in(?![a-z]) ?(.*)", text, re.DOTALL):
        return tree(match[2], depth + 1)
    sides = _split(text, EQUALS)
    if len(sides) < 2 or not all(sides):
        return None
    return ("equation", sides[0], tree(sides[0], depth + 1), tree(sides[-1], depth + 1), len(sides))


def _bracketed(text: str, depth: int) -> Tree | None:
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2].strip()
        if "|" in inner or ":" in inner or not _balanced(inner):
            return ("raw", text)
        node = tree(inner, depth + 1) if inner else ("list", ())
        return node if node[0] == "list" else ("list", (node,))
    if text[:1] not in ("(", "[", "{") or text[-1:] not in (")", "]", "}") or not _balanced(text[1:-1]):
        return None
    inner = text[1:-1].strip()
    items = _split(inner, LIST)
    if len(items) == 1:
        return tree(inner, depth + 1) if text[-1] == CLOSING[text[0]] and inner else ("raw", text)
    if text[0] == "{":
        return tree(inner, depth + 1)
    return ("sequence", text[0] + text[-1], tuple(tree(i, depth + 1) for i in items if i))


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _relation(text: str, depth: int) -> Tree | None:
    """x > 5 and 2 <= x < 5 as intervals of x; other inequalities as a sign and a difference."""
    signs = RELATION.findall(text)
    sides = [s.strip() for s in RELATION.split(text)]
    if not signs or len(signs) > 2 or not all(sides):
        return None
    if len(signs) == 2 and (FLIP[signs[0]] == signs[1] or r"\neq" in signs):
        return ("raw", text)
    if len(signs) == 2 and signs[0] in (">", r"\geq"):
        sides, signs = sides[::-1], [FLIP[s] for s in signs[::-1]]
    try:
        values = [algebra.constant(0) if "infty" in s else algebra.parse(s) for s in sides]
    except algebra.Unsettled:
        return ("raw", text)
    if len(signs) == 2:
        left, right = ("[" if signs[0] == r"\leq" else "("), ("]" if signs[1] == r"\leq" else ")")
        ends = tuple(tree(s, depth + 1) for s in (sides[0], sides[2]))
        return ("sequence", left + right, ends) if re.fullmatch(NAME, sides[1]) else ("raw", text)
    try:
        return _half_line(signs[0], algebra.minus(values[0], values[1]))
    except algebra.Unsettled:
        return ("raw", text)


def _half_line(sign: str, difference: algebra.Value) -> Tree:
    """difference < 0 as an interval of its one letter if it is linear in it, else as the relation itself."""
    solved = algebra.solve(difference)
    if solved is None or sign == r"\neq":
        return ("relation", sign, difference)
    root, rising = solved
    sign = sign if rising else FLIP[sign]
    end = ("value", root, "", False, "")
    if sign in ("<", r"\leq"):
        return ("sequence", "(" + ("]" if sign == r"\leq" else ")"), (("infinity", "-"), end))
    return ("sequence", ("[" if sign == r"\geq" else "(") + ")", (end, ("infinity", "")))


def _plus_minus(text: str, depth: int) -> Tree | None:
    found = re.findall(r"\\pm(?![a-z])|\\mp(?![a-z])", text)
    if not found:
        return None
    upper, lower = text, text
    for sign, plus, minus in ((r"\\pm(?![a-z])", "+", "-"), (r"\\mp(?![a-z])", "-", "+")):
        upper, lower = re.sub(sign, plus, upper), re.sub(sign, minus, lower)
    return ("list", (tree(upper, depth + 1), tree(lower, depth + 1)))


def _ratio(text: str, depth: int) -> Tree | None:
    if clock := re.fullmatch(r"(\d{1,2}) ?: ?(\d\d)(?: ?(?:\\text ?\{)? ?([aApP])\.? ?[mM]\.? ?\}?)?", text):
        return ("time", int(clock[1]), int(clock[2]), (clock[3] or "").lower())
    parts = _split(text, COLON)
    return ("ratio", tuple(tree(p, depth + 1) for p in parts)) if 1 < len(parts) < 9 and all(parts) else None


def _special(text: str, depth: int) -> Tree | None:
    if match := re.fullmatch(r"([-+]?) ?\{? ?\\infty ?\}?", text):
        return ("infinity", match[1].replace("+", ""))
    if match := re.fullmatch(
        r"(?:\\text ?\{)?\(?(-?\d\w*|[A-Za-z][0-9A-Za-z]+)[)}]? ?_ ?(?:\{ ?(\d+) ?\}|(\d+))", text
    ):
        return ("base", match[1].upper(), match[2] or match[3])
    if text == r"\ldots":
        return ("dots",)
    return ("list", ()) if text == r"\emptyset" else None


def _leaf(text: str) -> Tree:
    if _is_text(text):
        return ("word", " ".join(_plain(text).lower().split()))
    if found := numeral(text):
        return ("value", algebra.constant(found[0]), found[1], found[2], text)
    value, unit = units.split(text)
    percent = value.endswith("%")
    try:
        return ("value", algebra.parse(value.removesuffix("%")), unit, percent, text)
    except algebra.Unsettled:
        return ("raw", text)


# Equality of trees: True, False, or None if a raw leaf decides.


def same(p: Tree, g: Tree) -> bool | None:
    """Whether the prediction's tree says the same as the gold's."""
    if p[0] == "equation" or g[0] == "equation":
        return _same_equation(p, g)
    if p[0] == "list" and len(p[1]) == 1 and g[0] != "list":
        return same(p[1][0], g)
    if g[0] == "list" and len(g[1]) == 1 and p[0] != "list":
        return same(p, g[1][0])
    if p[0] != g[0]:
        return _same_kinds(p, g)
    if p[0] == "raw":
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


def _same_kinds(p: Tree, g: Tree) -> bool | None:
    kinds = {p[0], g[0]}
    if kinds == {"list", "sequence"}:  # (1, 2) and 1, 2: the brackets were left out
        pair, items = (p, g) if p[0] == "sequence" else (g, p)
        return True if pair[1] == "()" and _all(pair[2], items[1]) else None
    if kinds == {"list", "union"}:  # x < 2 or x > 3
        return _same_set(p[1], g[1]) or None
    if kinds == {"matrix", "sequence"}:  # a vector as a column or in round brackets
        vector, row = (p, g) if p[0] == "matrix" else (g, p)
        return (row[1] == "()" and 1 in vector[1] and _all(row[2], vector[2])) or None
    if "raw" in kinds or kinds & {"matrix", "determinant", "union", "relation", "ratio"}:
        return None
    return False


def _all(a: tuple[Tree, ...], b: tuple[Tree, ...]) -> bool | None:
    if len(a) != len(b):
        return False
    found = [same(x, y) for x, y in zip(a, b)]
    return False if False in found else None if None in found else True


def _same_set(a: tuple[Tree, ...], b: tuple[Tree, ...]) -> bool | None:
    """Every item has its like on the other side."""
    if len(a) * len(b) > 1024:
        return None
    table = [[same(x, y) for y in b] for x in a]
    lines = table + [list(column) for column in zip(*table)] if a and b else [[False]] * (len(a) + len(b))
    best = [True if True in line else None if None in line else False for line in lines]
    return False if False in best else None if None in best else True


def _same_value(p: Tree, g: Tree) -> bool | None:
    if units.differ(p[2], g[2]):
        return False
    try:
        candidates = [p[1]]
        if p[3] != g[3]:  # one percent sign: 50% is 50 and .5
            percent = algebra.parse("1/100")
            candidates = (
                [p[1], algebra.times(p[1], percent)] if p[3] else [p[1], algebra.times(p[1], algebra.constant(100))]
            )
        if any(c == g[1] for c in candidates):
            return True
        return any(_written_out(c, p[4], g[1]) for c in candidates[:1])
    except algebra.Unsettled:
        return None


def _written_out(value: algebra.Value, text: str, gold: algebra.Value) -> bool:
    """Whether a decimal of at least twelve significant digits is the gold answer to its last digit."""
    digits = re.fullmatch(r"-?(\d*)\.(\d+)", text)
    if not digits or len((digits[1] + digits[2]).lstrip("0")) < 12:
        return False
    exact, shown = algebra.approximate(gold), algebra.approximate(value)
    return (
        exact is not None
        and shown is not None
        and abs(exact - shown) <= max(10.0 ** -len(digits[2]), 1e-15 * abs(exact))
    )


def _same_ratio(a: tuple[Tree, ...], b: tuple[Tree, ...]) -> bool | None:
    """a:b = c:d if a·d = b·c, and so on."""
    equal = _all(a, b)
    if equal or len(a) != len(b) or any(node[0] != "value" for node in a + b):
        return equal
    return all(algebra.times(x[1], b[0][1]) == algebra.times(a[0][1], y[1]) for x, y in zip(a, b))


def _same_relation(p: Tree, g: Tree) -> bool | None:
    factor = algebra.ratio(p[2], g[2])
    return factor is not None and (FLIP[p[1]] if factor < 0 else p[1]) == g[1]


def _same_equation(p: Tree, g: Tree) -> bool | None:
    """x = 5 is 5; two equations agree if their right sides do, or if one is a multiple of the other."""
    if p[0] != "equation" or g[0] != "equation":
        (
            equation,
            other,
        ) = (p, g) if p[0] == "equation" else (g, p)
        if not re.fullmatch(NAME, equation[1]) and not (p[0] == "equation" and algebra_constant(equation[2])):
            return None if not is_exact(other) else (False if is_exact(equation[2]) and is_exact(equation[3]) else None)
        return same(equation[3], other) if equation is p else same(other, equation[3])
    if p[1].replace(" ", "") == g[1].replace(" ", ""):
        return same(p[3], g[3])
    if any(side[0] != "value" for side in (p[2], p[3], g[2], g[3])):
        return None
    return algebra.ratio(algebra.minus(p[2][1], p[3][1]), algebra.minus(g[2][1], g[3][1])) is not None


def algebra_constant(node: Tree) -> bool:
    """Whether a leaf is a number."""
    return node[0] == "value" and algebra.approximate(node[1]) is not None
