r"""Answers as small trees, read from normalised LaTeX.

A node is a tuple whose first entry is its kind: ("value", Value, unit, percent sign, text) at the leaves; "list",
"union", "sequence" (tuples and intervals), "matrix", "equation", "relation", "ratio", "time", "base", "infinity",
"word" above them or beside them. ("undefined", text) has no meaning, as (1, 2) + 3; ("raw", text)
cannot be read exactly.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from lanpo_jax.rewards import algebra, formula, functions, units

Tree = tuple[Any, ...]

LONGEST = 1000  # characters of an answer that is read at all; a longer one must equal the gold as a text
NUMERAL = re.compile(r"[-+]?\s*(?:\d+\.?\d*|\.\d+)")
SCIENTIFIC = re.compile(
    r"([-+]?\s*(?:\d+\.?\d*|\.\d+))\s*(?:\*\s*10\s*\^\s*\{?\s*([-+]?\s*\d{1,3})\s*\}?|[eE]([-+]?\d{1,3}))"
)
POWER_OF_TEN = re.compile(r"10\s*\^\s*\{?\s*(\d{1,3})\s*\}?")
WORDS = re.compile(r"[A-Za-z][A-Za-z' .-]*[A-Za-z.]")
WRAPPED = re.compile(r"\\text ?\{([^{}]*)\}")
NAME = (  # x_1, f(2), P(A \cap B), m\angle ABC, the area [ABC], the length |AB|
    r"(?:(?:\\?[A-Za-z]+'*|\\text ?\{[^{}]*\})(?:_\{[^{}]*\}|_\w)?(?: ?\([^()=,]{1,20}(?:,[^()=,]{1,20})*\))?"
    r"|m? ?\\angle ?\w+|\[ ?[A-Z]{2,9} ?\]|\| ?[A-Z]{2} ?\|)"
)
DATED = re.compile(r"(?!sin|cos|tan|log|exp)[A-Za-z]{3,}\.? \d{1,4}(?:, \d{4})?")  # October 30
NAMES = re.compile(rf"\( ?{NAME}(?: ?, ?{NAME})+ ?\)")
ASSIGNED = re.compile(rf"({NAME}) ?(?:=|\\in(?![a-z])) ?(.*)", re.DOTALL)
RELATION = re.compile(r"\\leq(?![a-z])|\\geq(?![a-z])|\\neq(?![a-z])|<|>")
FLIP = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", r"\neq": r"\neq"}
MATRIX = re.compile(r"\\begin ?\{([pbBv]?matrix|smallmatrix|array)\}(?: ?\{[lcr| ]*\})?(.*?)\\end ?\{\1\}", re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
NUMBER_WORDS = {"pi", "infty", "infinity", "inf", "nan"}
LIST = re.compile(r",? ?\\text ?\{,? ?(?:and|or),? ?\}|,? (?:and|or) |[,;](?: ?(?:and|or) )?")
CUP = re.compile(r"\\cup(?![a-z])|\\bigcup(?![a-z])| U ")
BASE = re.compile(r"(?:\\text ?\{)?\(?(-?\d\w*|[A-Za-z][0-9A-Za-z]+)[)}]? ?_ ?(?:\{ ?(\d+) ?\}|(\d+))")
BUILDER = re.compile(rf"{NAME}(?: ?\\in ?\\mathbb ?\{{?R\}}?)? ?[|:](.*)", re.DOTALL)  # x : x > 2
MODULO = re.compile(
    r"(?:.*\\equiv(?![a-z]))?(.*?)\(? ?(?:\\pmod|\\bmod|\\mod|\\text ?\{ ?mod ?\}|mod) ?\{? ?(\d{1,9}) ?\}? ?\)?",
    re.DOTALL,
)
BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
BASE_SPELLED = re.compile(  # 13 (base 8), 13_{\text{eight}}
    r" ?\(? ?(?:\\text ?\{ ?\(? ?(?:in )?base|(?:in )?base|_ ?\{? ?\\text ?\{)[ -]*\}? ?"
    r"\{? ?(\d+|[a-z]+) ?\)? ?\}? ?\)?\}?$"
)
COLON = re.compile(r":")
EQUALS = re.compile(r"=")


def plain(text: str) -> str:
    """Without text wrappers and quotes."""
    return re.sub(r"\\text ?\{([^{}]*)\}", r"\1", text).replace('"', "").strip(" .,;{}")


def is_text(text: str) -> bool:
    """Words rather than mathematics: "even", "October 30" in a text wrapper, but neither "ab" nor "pi"."""
    if wrapped := WRAPPED.fullmatch(text):
        return bool(re.match(r"[^\d,;(]*[A-Za-z]{2}[^,;=]*$", wrapped[1])) and " and " not in wrapped[1]
    bare = plain(text)
    if DATED.fullmatch(bare):
        return True
    if not WORDS.fullmatch(bare) or bare.lower() in NUMBER_WORDS:
        return False
    return "\\text" in text or bool(re.search(r"[A-Za-z]{3}", bare))


def numeral(text: str) -> tuple[Fraction, str, bool] | None:
    """(number, unit, whether a percent sign follows) of a written number, or None for anything to be worked out."""
    text = _assigned(text) if "=" in text else text
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
    sides = [side.strip() for side in text.split("=")]
    if (
        len(sides) < 2
        or LIST.search(text)
        or not re.fullmatch(rf"{NAME}|(?:\\(?:frac|sqrt|binom) ?|[-+*/ (){{}}^!\d.])+", sides[0])
    ):
        return text
    return sides[0] if len(sides) == 2 and re.fullmatch(NAME, sides[1]) and NUMERAL.fullmatch(sides[0]) else sides[-1]


def is_exact(node: Tree) -> bool:
    """Whether all leaves of a tree were read exactly."""
    if node[0] == "raw":
        return False
    parts = [part for part in node[1:] if isinstance(part, tuple) and part]
    children = [part for part in parts if isinstance(part[0], str)]
    children += [child for part in parts if isinstance(part[0], tuple) for child in part]
    return all(is_exact(child) for child in children)


def tree(text: str, depth: int = 0) -> Tree:
    """Reads a normalised answer. What cannot be read exactly becomes ("raw", text)."""
    text = text.strip()
    if depth > 8 or len(text) > LONGEST:
        return ("raw", text)
    if (wrapped := WRAPPED.fullmatch(text)) and not is_text(text):
        text = wrapped[1].strip()
    for read in (
        _matrix,
        _list,
        _union,
        _equation,
        _bracketed,
        _relation,
        _plus_minus,
        _modulo,
        _ratio,
        _special,
        _scaled,
    ):
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
    if len(sides) == 2 and NAMES.fullmatch(sides[0]):  # (x, y) = (1, 2)
        return tree(sides[1], depth + 1)
    left, right = tree(sides[0], depth + 1), tree(sides[-1], depth + 1)
    if len(sides) == 2 and left[0] == "value" and re.fullmatch(NAME, sides[1]) and not re.fullmatch(NAME, sides[0]):
        return ("equation", sides[1], right, left, 2)  # 5 = x
    return ("equation", sides[0], left, right, len(sides))


def _bracketed(text: str, depth: int) -> Tree | None:
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2].strip()
        if builder := BUILDER.fullmatch(inner):
            node = tree(builder[1], depth + 1)
            return node if node[0] in ("sequence", "union", "relation") else ("raw", text)
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
        values = [algebra.constant(0) if "infty" in s else formula.parse(s) for s in sides]
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
    if solved is None:
        return ("relation", sign, difference)
    root, rising = solved
    if sign == r"\neq":
        return ("union", (_half_line("<", difference), _half_line(">", difference)))
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


def residue(text: str) -> str:
    """5 of 5 (mod 7)."""
    match = MODULO.fullmatch(text)
    return match[1].strip() if match else text


def _modulo(text: str, depth: int) -> Tree | None:
    """x = 5 (mod 7); the residue is reduced."""
    match = MODULO.fullmatch(text) if "mod" in text else None
    residue = numeral(match[1]) if match else None
    if residue is None or residue[1] or int(match[2]) == 0:
        return None
    return ("modulo", residue[0] % int(match[2]), int(match[2]))


def _ratio(text: str, depth: int) -> Tree | None:
    if clock := re.fullmatch(r"(\d{1,2}) ?: ?(\d\d)(?: ?(?:\\text ?\{)? ?([aApP])\.? ?[mM]\.? ?\}?)?", text):
        return ("time", int(clock[1]), int(clock[2]), (clock[3] or "").lower())
    parts = _split(text, COLON)
    return ("ratio", tuple(tree(p, depth + 1) for p in parts)) if 1 < len(parts) < 9 and all(parts) else None


def _base(match: re.Match[str]) -> str:
    return f"_{{{BASE_NAMES.get(match[1], match[1])}}}"


def _special(text: str, depth: int) -> Tree | None:
    if match := re.fullmatch(r"([-+]?) ?\{? ?\\infty ?\}?", text):
        return ("infinity", match[1].replace("+", ""))
    if match := BASE.fullmatch(BASE_SPELLED.sub(_base, text)):
        return ("base", match[1].upper(), match[2] or match[3])
    if text.replace(" ", "") == r"\mathbb{R}":
        return ("sequence", "()", (("infinity", "-"), ("infinity", "")))
    if text == r"\ldots":
        return ("dots",)
    return ("list", ()) if text == r"\emptyset" else None


def _scaled(text: str, depth: int) -> Tree | None:
    """A vector or matrix with a number before it; ("undefined", text) for an interval so or a number added."""
    if "," not in text and "&" not in text and r"\\" not in text:
        return None
    matrix = MATRIX.search(text)
    start, end = matrix.span() if matrix else _pair(text)
    before, after = text[:start].strip(), text[end:].strip()
    if end == 0 or not (before or after) or after[:1] in ("^", "/", "!"):
        return None
    try:
        factor = formula.parse(f"{before} (1) {after}")
    except algebra.Unsettled:
        return None
    vector = tree(text[start:end], depth + 1)
    if functions.approximate(factor) is None or vector[0] not in ("sequence", "matrix") or not is_exact(vector):
        return None
    if after or vector[1] in ("(]", "[)", "[]") or any(node[0] != "value" or node[2] for node in vector[2]):
        return ("undefined", text)
    items = tuple(("value", algebra.times(factor, node[1]), "", node[3], "") for node in vector[2])
    return (*vector[:2], items)


def _pair(text: str) -> tuple[int, int]:
    """Where the first bracket stands that is opened at the top and holds a comma; (0, 0) if there is none."""
    start = depth = 0
    for position, character in enumerate(text):
        if character in "([":
            start, depth = (position, 1) if depth == 0 else (start, depth + 1)
        elif character in ")]" and depth:
            depth -= 1
            if depth == 0 and "," in text[start:position]:
                return start, position + 1
    return 0, 0


def _leaf(text: str) -> Tree:
    if is_text(text):
        return ("word", " ".join(plain(text).lower().split()))
    if found := numeral(text):
        return ("value", algebra.constant(found[0]), found[1], found[2], text)
    value, unit = units.split(text)
    percent = value.endswith("%")
    try:
        return ("value", formula.parse(value.removesuffix("%")), unit, percent, text)
    except algebra.Unsettled:
        return ("raw", text)
