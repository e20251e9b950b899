"""Generated problems: arithmetic stories in words, plain additions with their carries, and hidden rules to find out.

Everything is a function of the options and the seed; gold answers are integers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from lanpo_jax import spec
from lanpo_jax.types import Problem

HE = "Tom Ben Sam Max Jack Luke Adam Noah Leo Paul Carl Eric Frank George Henry Ivan James Kevin Liam Mark Nick Oscar"
SHE = (
    "Anna Mia Emma Lucy Sara Kate Jane Lily Rosa Nora Amy Beth Clara Diana Ella Fiona Grace Helen Iris Julia Laura Mary"
)
THINGS = (
    "apple book pencil marble sticker coin card shell stamp button balloon cookie orange pear plum lemon "
    "carrot egg cake muffin flower rose candle cup plate spoon bottle basket ball kite doll puzzle ticket badge "
    "ribbon bead stone brick"
)
# Solved examples have their own names and things, so that no generated problem can have an example's text.
EXAMPLE_PEOPLE = (("Olga", "She"), ("Bruno", "He"), ("Tina", "She"))
EXAMPLE_THINGS = ("ring", "lamp", "drum")
EXAMPLE_NUMBERS = {1: ((8, 2), (5, 4), (9, 6)), 2: ((21, 13), (45, 28), (36, 17))}

# {n} name, {p} pronoun, {a} "4 apples", {b} "5", {bt} "5 apples", {t} "apples", {one} "apple".
TEMPLATES = {
    "add": (
        "{n} has {a}. {p} buys {b} more. How many {t} does {n} have now?",
        "{n} finds {a} in the morning and {bt} in the evening. How many {t} does {n} find in all?",
        "There are {a} on the table. {n} puts {b} more on it. How many {t} are on the table now?",
        "{n} has {a} and gets {bt} from a friend. How many {t} does {n} have in total?",
        "{n} puts {a} in one box and {bt} in another box. How many {t} are in the two boxes?",
        "A shop has {a}. {n} brings {b} more to the shop. How many {t} does the shop have now?",
    ),
    "subtract": (
        "{n} has {a}. {p} gives away {b}. How many {t} does {n} have left?",
        "There are {a} on the table. {n} takes {b} of them away. How many {t} are left on the table?",
        "{n} had {a} and lost {b} of them. How many {t} does {n} still have?",
        "A shop has {a}. {n} buys {b} of them. How many {t} are left in the shop?",
        "{n} wants {a} and has {b} so far. How many more {t} does {n} need?",
    ),
    "multiply": (
        "{n} has {b} boxes. Each box holds {a}. How many {t} does {n} have?",
        "{n} buys {b} bags with {a} in each bag. How many {t} does {n} buy?",
        "There are {b} tables in a room. {n} puts {a} on each table. How many {t} are there on the tables?",
        "{n} collects {a} every day. How many {t} does {n} collect in {b} days?",
    ),
    "mixed": (
        "{n} has {b} boxes with {a} in each box. {p} buys {c} more. How many {t} does {n} have now?",
        "{n} buys {b} bags with {a} in each bag and gives away {c}. How many {t} does {n} have left?",
        "{n} has {a}. {p} buys {b} more and then gives away {c}. How many {t} does {n} have now?",
        "{n} has {a}. {p} gives away {b} and then finds {c} more. How many {t} does {n} have now?",
    ),
}
# The signs of a mixed story's two steps, in the order of its templates: a·b+c, a·b-c, a+b-c, a-b+c.
MIXED_SIGNS = (("*", "+"), ("*", "-"), ("+", "-"), ("-", "+"))
PARTS = {"all": slice(None), "train": slice(0, None, 2), "eval": slice(1, None, 2)}


def stories(
    *, operation: str = "add", digits: int = 1, count: int = 1000, seed: int = 0, part: str = "all"
) -> list[Problem]:
    """Short word problems, e.g. "Tom has 4 apples. He buys 5 more. How many apples does Tom have now?".

    Args:
        operation: add | subtract | multiply | mixed (two steps).
        digits: of the numbers, 1 or 2; the second factor of a product keeps one digit.
        count: number of problems, all of different text.
        seed: same options and seed, same problems.
        part: "train" and "eval" use different names and things, so their texts never coincide; "all" uses both.

    Raises ValueError for an unknown option value, or if there are fewer than `count` different problems.
    """
    _check(operation, digits)
    if part not in PARTS:
        raise ValueError(f"stories has no part {part!r}; there are: {', '.join(PARTS)}.")
    rng = np.random.default_rng((seed, digits, list(TEMPLATES).index(operation), list(PARTS).index(part)))
    people = [(n, "He") for n in HE.split()[PARTS[part]]] + [(n, "She") for n in SHE.split()[PARTS[part]]]
    things = THINGS.split()[PARTS[part]]
    name = f"stories/{operation}{digits}/{part}/{seed}"
    found: dict[str, tuple[str, str]] = {}  # text -> answer, solution
    for _ in range(20 * count + 100):
        if len(found) == count:
            break
        which = int(rng.integers(len(TEMPLATES[operation])))
        numbers = _numbers(rng, operation, digits, which)
        text = _story(operation, which, people[rng.integers(len(people))], things[rng.integers(len(things))], numbers)
        found[text] = str(_result(operation, which, numbers)), _solution(operation, which, numbers)
    if len(found) < count:
        raise ValueError(
            f"stories(operation={operation!r}, digits={digits}) has no {count} different problems; ask for fewer."
        )
    return [
        Problem(f"{name}/{i}", text, answer, name, {"solution": solution})
        for i, (text, (answer, solution)) in enumerate(found.items())
    ]


def addition(*, digits: int = 2, count: int = 1000, seed: int = 0, part: str = "all") -> list[Problem]:
    """Plain sums such as "47+38=?" of two numbers with at most `digits` digits, for a tiny model trained from scratch.

    `part` "train" and "eval" divide the pairs of numbers by a fixed hash, one pair in five for "eval". Pairs repeat
    only if `count` exceeds their number.
    """
    if not 1 <= digits <= 9 or part not in PARTS:
        raise ValueError(
            f"addition(digits={digits}, part={part!r}) is none; digits are 1 to 9, parts {', '.join(PARTS)}."
        )
    rng = np.random.default_rng((seed, digits, list(PARTS).index(part)))
    name, limit = f"addition{digits}/{part}/{seed}", 10**digits
    pairs: dict[tuple[int, int], None] = {}
    result: list[Problem] = []
    misses = 0
    while len(result) < count:
        a, b = (int(x) for x in rng.integers(limit, size=2))
        repeated = (a, b) in pairs and misses < 100
        if repeated or (part != "all" and (_held_out(a, b) != (part == "eval"))):
            misses += repeated
            continue
        misses = 0
        pairs[a, b] = None
        result.append(Problem(f"{name}/{len(result)}", f"{a}+{b}=?", str(a + b), name))
    return [dataclasses.replace(p, extra={"solution": trace(p)}) for p in result]


def trace(problem: Problem, *, slips: float = 0.0, seed: int = 0) -> str:
    """A worked solution of an `addition` problem, column by column: "7+8=15 carry 1, 4+3+1=8, answer is 85".

    With probability `slips` one column goes wrong (its sum is off by one, or its carry is dropped or invented) and the
    rest follows from it: warm-up data that leaves something to learn from rewards. Deterministic in
    (problem.id, seed).
    """
    a, b = (int(x) for x in problem.text.removesuffix("=?").split("+"))
    rng = np.random.default_rng(_number(f"{seed} {problem.id}"))
    width = max(len(str(a)), len(str(b)))
    slip = int(rng.integers(width)) if rng.random() < slips else -1
    steps, figures, carry = [], "", 0
    for column in range(width):
        x, y = a // 10**column % 10, b // 10**column % 10
        step, total = f"{x}+{y}" + (f"+{carry}" if carry else ""), x + y + carry
        kind = rng.choice(["sum", "carry"] if column < width - 1 else ["sum"]) if column == slip else ""
        total += (int(rng.choice([-1, 1])) if total else 1) if kind == "sum" else 0
        carry = total // 10 if kind != "carry" else 1 - total // 10
        figures = str(total % 10) + figures
        steps.append(f"{step}={total}" + (" carry 1" if carry and column < width - 1 else ""))
    return f"{', '.join(steps)}, answer is {int(f'{carry}{figures}')}"


def rules(*, operators: int = 24, count: int = 1000, seed: int = 0, part: str = "all") -> list[Problem]:
    """Problems such as "mab of 4 and 7?" whose operator has a secret that no text tells: here, to add 3 to the sum.

    A lesson drawn from one solved problem ("the mab adds 3") solves all others of its operator; without one there is
    nothing to do but guess, right once in ten. The secrets depend on the names alone, so sets of any seed share them.
    `part` "train" and "eval" divide the (operator, numbers), one in five for "eval". Raises ValueError where there are
    fewer problems than `count`.
    """
    names = rule_names(operators)
    found = [(n, a, b) for n in names for a in range(1, 10) for b in range(1, 10)]
    if part not in PARTS:
        raise ValueError(f"rules(part={part!r}) is none; parts are {', '.join(PARTS)}.")
    found = [f for f in found if part == "all" or (_number(f"{f}") % 5 == 0) == (part == "eval")]
    if count > len(found):
        raise ValueError(f"rules(operators={operators}, part={part!r}) has {len(found)} problems; ask for fewer.")
    chosen = np.random.default_rng((seed, 7)).permutation(len(found))[:count]
    title = f"rules{operators}/{part}/{seed}"
    return [
        Problem(f"{title}/{i}", f"{n} of {a} and {b}?", str(a + b + secret(n)), title)
        for i, (n, a, b) in enumerate(found[k] for k in chosen)
    ]


def rule_names(count: int) -> list[str]:
    """The first `count` operators of `rules`, three letters each. Raises ValueError for more than there are."""
    names = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in "bdgklmnprstxz"]
    if not 1 <= count <= len(names):
        raise ValueError(f"rules(operators={count}) is none; there are 1 to {len(names)}.")
    return sorted(names, key=_number)[:count]


def secret(operator: str) -> int:
    """What an operator of `rules` adds to the sum, 0 to 9."""
    return _number(f"secret of {operator}") % 10


def rule_trace(problem: Problem, shift: int) -> str:
    """A worked solution of a `rules` problem that takes the secret to be `shift`."""
    name, _, a, _, b = problem.text.rstrip("?").split()
    total = int(a) + int(b)
    return f"{name} adds {shift}, {a}+{b}={total}, {total}+{shift}={total + shift}, answer is {total + shift}"


def examples(family: str) -> tuple[tuple[str, str], ...]:
    """Three (problem, solution) pairs for a few-shot prompt; their texts never occur among the generated problems.

    Args:
        family: a source as configs name it, e.g. "stories(operation='add', digits=1)" or "addition(digits=2)".

    Raises ValueError for a source that is no family.
    """
    name, arguments = spec.parse(family)
    if name == "addition":
        digits = arguments.get("digits", 2)  # numbers with one digit too many
        sums = [Problem(str(i), f"{a}+{b}=?", "") for i, (a, b) in enumerate(_long_pairs(digits))]
        return tuple((p.text, trace(p)) for p in sums)
    if name != "stories":
        raise ValueError(f"{family!r} has no solved examples of its own; there are some for: stories, addition.")
    operation, digits = arguments.get("operation", "add"), arguments.get("digits", 1)
    _check(operation, digits)
    return tuple(_example(operation, digits, i) for i in range(3))


def _check(operation: str, digits: int) -> None:
    if operation not in TEMPLATES or digits not in EXAMPLE_NUMBERS:
        raise ValueError(
            f"stories(operation={operation!r}, digits={digits}) is none; "
            f"operations are {', '.join(TEMPLATES)}, digits 1 or 2."
        )


def _numbers(rng: np.random.Generator, operation: str, digits: int, which: int) -> tuple[int, ...]:
    """Two numbers, or three for a mixed story, with every intermediate result above 0."""
    low, high = (2, 10) if digits == 1 else (10, 100)
    a = int(rng.integers(low, high))
    if operation == "add":
        return a, int(rng.integers(low, high))
    if operation == "subtract":
        a = int(rng.integers(low + 1, high))
        return a, int(rng.integers(low - 1, a))
    b = int(rng.integers(2, 10))
    if operation == "multiply":
        return a, b
    first, second = MIXED_SIGNS[which]
    if first != "*":
        b = int(rng.integers(low - 1, a)) if first == "-" else int(rng.integers(low, high))
    most = _apply(first, a, b) if second == "-" else high
    return a, b, int(rng.integers(1, min(most, high)))


def _apply(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def _result(operation: str, which: int, numbers: Sequence[int]) -> int:
    if operation == "mixed":
        first, second = MIXED_SIGNS[which]
        return _apply(second, _apply(first, numbers[0], numbers[1]), numbers[2])
    return _apply({"add": "+", "subtract": "-", "multiply": "*"}[operation], *numbers)


def _story(operation: str, which: int, person: tuple[str, str], thing: str, numbers: Sequence[int]) -> str:
    name, pronoun = person
    a, b, c = (*numbers, 0)[:3]
    values = {"n": name, "p": pronoun, "a": _count(a, thing), "b": b, "c": c, "bt": _count(b, thing), "t": f"{thing}s"}
    return TEMPLATES[operation][which].format_map(values)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _example(operation: str, digits: int, index: int) -> tuple[str, str]:
    a, b = sorted(EXAMPLE_NUMBERS[digits][index], reverse=operation in ("subtract", "mixed"))
    if operation == "multiply" and digits == 2:
        a, b = a, index + 2
    which = index if operation != "mixed" else (0, 2, 3)[index]
    numbers: tuple[int, ...] = (a, b)
    if operation == "mixed":
        numbers = (a, index + 2 if which == 0 else b, index + 1)
    text = _story(operation, which, EXAMPLE_PEOPLE[index], EXAMPLE_THINGS[index], numbers)
    return text, _solution(operation, which, numbers)


def _solution(operation: str, which: int, numbers: Sequence[int]) -> str:
    """The calculation in one line."""
    result = _result(operation, which, numbers)
    if operation == "mixed":
        first, second = MIXED_SIGNS[which]
        between = _apply(first, numbers[0], numbers[1])
        work = f"{numbers[0]} {first} {numbers[1]} = {between}, and {between} {second} {numbers[2]} = {result}"
    else:
        sign = {"add": "+", "subtract": "-", "multiply": "*"}[operation]
        work = f"{numbers[0]} {sign} {numbers[1]} = {result}"
    return f"We calculate {work}. The answer is {result}."


def _held_out(a: int, b: int) -> bool:
    return _number(f"{a}+{b}") % 5 == 0


def _long_pairs(digits: int) -> list[tuple[int, int]]:
    scale = 10**digits
    return [(scale + 27, scale + 58), (scale + 64, scale + 35), (scale + 8, scale + 9)]


def _number(text: str) -> int:
    """A fixed 64-bit number for a text, equal in every process (unlike hash())."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
