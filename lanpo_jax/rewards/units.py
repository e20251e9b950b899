"""Units and currencies around a number: "$5", "12 cm^2", "90 degrees", "7 apples"."""

from __future__ import annotations

import re

# Names of one unit stand in one line; the first is its name here. Two answers in different known units differ.
KNOWN = """
mm millimeter millimeters millimetre millimetres
cm centimeter centimeters centimetre centimetres
m meter meters metre metres
km kilometer kilometers kilometre kilometres
in inch inches
ft foot feet
yd yard yards
mi mile miles
mg milligram milligrams
g gram grams
kg kilogram kilograms
lb lbs pound pounds
oz ounce ounces
ml milliliter milliliters
l liter liters litre litres
s sec secs second seconds
min mins minute minutes
h hr hrs hour hours
day days
week weeks
month months
year years
mph
kph
hz hertz
rad radian radians
deg degree degrees
dollar dollars usd bucks
cent cents
euro euros
""".strip()
NAMES = {name: line.split()[0] for line in KNOWN.splitlines() for name in line.split()}
CURRENCIES = {
    "US$": "dollar",
    "$": "dollar",
    "€": "euro",
    "£": "pound sterling",
    "¥": "yen",
    "₹": "rupee",
    "Rs.": "rupee",
}

# Letters that follow a number without a space are a unit only if they are one of these: "12cm", but "2n".
SHORT = "mm|cm|km|in|ft|yd|mi|mg|kg|lbs?|oz|ml|mph|kph|hz|min|hrs?|deg|sec"
WORD = r"(?:[A-Za-z]{2,}|[A-Za-z](?=/))"  # "5 km", "5 m/s"
VALUE = r"(?P<value>.*[\d)}\]])"
POWER = r"(?:\s*\^\s*\{?\s*-?[1-9]\s*\}?)?"
TEXT_UNIT = re.compile(
    r"(?P<value>.*[^\s\\])\s*\\text\s*\{\s*(?P<unit>[^{}\\$\d]*[A-Za-z][^{}\\$]*)\}(?:\s*/\s*\\text\s*\{[^{}]*\})?"
    + POWER
)
WORD_UNIT = re.compile(
    VALUE + rf"\s*(?:(?<=[\d)}}])(?P<short>{SHORT})|\s(?P<word>{WORD}(?:[ /.-][A-Za-z.]+){{0,4}}))\.?" + POWER,
    re.I,
)
DEGREES = re.compile(VALUE + r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*)?(?P<scale>[CF]?)(?:\s*\})?")
WORDLIKE = re.compile(r"[^-+*/^()\d., =]")
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # the degrees belong to what it applies to
NOT_UNITS = re.compile(
    r"\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|mod|or|and|to|is|if|base|over|times|plus|minus|divided|x|of)\b", re.I
)


def split(text: str) -> tuple[str, str]:
    """(value, unit) of a normalised answer; the unit is "" or a lower-case word, known or not."""
    text = text.strip()
    sign = "-" if re.match(r"-\s*[$€£¥₹]", text) else ""
    if text[:1].isdigit() and not WORDLIKE.search(text):  # the usual case
        return text, ""
    for mark, name in CURRENCIES.items():
        rest = text.removeprefix(sign).strip()
        if rest.startswith(mark) and not rest[len(mark) :].lstrip().startswith(tuple(CURRENCIES)):
            return sign + split(rest[len(mark) :])[0], name
        if rest.endswith(mark) and rest[: -len(mark)].strip():
            return text[: -len(mark)].strip(), name
    if len(text) > 300:  # a value this long is no number with a unit
        return text, ""
    if (match := DEGREES.fullmatch(text)) and not ANGLE.search(match["value"]):
        return match["value"], "deg" + match["scale"].lower()
    if match := TEXT_UNIT.fullmatch(text):
        return match["value"], _name(match["unit"] + text[match.end("unit") :])
    if (match := WORD_UNIT.fullmatch(text)) and not NOT_UNITS.search(match["short"] or match["word"]):
        return match["value"], _name(
            (match["short"] or match["word"]) + text[match.end("short" if match["short"] else "word") :]
        )
    return text, ""


def differ(a: str, b: str) -> bool:
    """Whether two units are both known, and are different ones ("cm" and "m", but not "cm" and "square cm")."""
    return a in _ALL and b in _ALL and a != b and not ("deg" in (a, b) and a[:3] == b[:3])


_ALL = {*NAMES.values(), *CURRENCIES.values(), "degc", "degf"}


def _name(words: str) -> str:
    words = re.sub(r"\b(?:per|square|cubic|sq|cu)\b.*|[^A-Za-z/ ]|/.*", "", words.lower()).strip()
    return NAMES.get(words, words)
