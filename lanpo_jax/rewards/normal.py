r"""One spelling for answers: LaTeX layout, Unicode, thousands marks and words are brought to one form.

The result is LaTeX with `\frac`, `*` for products, `\text{...}` for words, single spaces and no layout commands.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

# Digits above the line and fractions must be spelled out before Unicode compatibility folding makes them plain digits.
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "*", "⋅": "*", "·": "*", "∗": "*", "÷": "/", "∕": "/",
    "⁄": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "ℝ": r"\mathbb{R}",
    "∅": r"\emptyset ", "…": r"\ldots ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "≈": r"\approx ", "′": "'", "“": '"', "”": '"', "’": "'", "‘": "'", "％": "%", "⟨": r"\langle ", "⟩": r"\rangle ",
}  # fmt: skip
LAYOUT = re.compile(
    r"\\(?:(?:left|right)\.?|tiny|small|large|Large|LARGE|huge|Huge|normalsize|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg|biggl|biggr|displaystyle|textstyle|limits|nolimits|middle|"
    r"rm|bf|it|mathstrut|strut|phantom\{[^{}]*\}|hphantom\{[^{}]*\}|label\{[^{}]*\}|tag\{[^{}]*\})(?![A-Za-z])"
)
SPACES = re.compile(
    r"(?<!\\)\\(?:[ ;:]|quad(?![A-Za-z])|qquad(?![A-Za-z])|space(?![A-Za-z])|enspace(?![A-Za-z])|\n)|~|\s"
)
WORDS = re.compile(
    r"\\(?:textbf|textit|textrm|textsf|texttt|textnormal|emph|mbox|hbox|operatorname\*?|mathrm|mathsf|mathit)(?=\s*\{)"
)
COLOR = re.compile(r"\\(?:text)?color(?:box)? ?\{[^{}]*\}")
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
UPRIGHT = re.compile(rf"\\(?:operatorname\*?|mathrm|text) ?\{{ ?({FUNCTIONS}|e|i) ?\}}")
WRAPPED_NUMBER = re.compile(r"\\text ?\{ *([-+]?[\d.,]+(?:/\d+)?) *\}")
BOLD = re.compile(
    r"\\(?:underline|mathbf|boldsymbol|bm|pmb|mathcal|mathnormal|ensuremath|boxed|fbox|overline)(?=\s*\{)\s*\{([^{}]*)\}"
)
ALIASES = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\cdot": "*", r"\times": "*", r"\ast": "*",
    r"\div": "/", r"\dots": r"\ldots", r"\cdots": r"\ldots", r"\dotsc": r"\ldots", r"\dotsb": r"\ldots",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\le": r"\leq", r"\ge": r"\geq", r"\leqslant": r"\leq",
    r"\geqslant": r"\geq", r"\ne": r"\neq", r"\lt": "<", r"\gt": ">", r"\lbrack": "[", r"\rbrack": "]",
    r"\lparen": "(", r"\rparen": ")", r"\varnothing": r"\emptyset", r"\infin": r"\infty", r"\dbinom": r"\binom",
    r"\tbinom": r"\binom", r"\colon": ":", r"\degree": r"^\circ", r"\land": r"\text{ and }", r"\lor": r"\text{ or }",
    r"\R": r"\mathbb{R}", r"\percent": "%", r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|",
    r"\langle": "(", r"\rangle": ")",
    r"\longrightarrow": r"\to", r"\rightarrow": r"\to", r"\slash": "/", r"\pounds": "£", r"\euro": "€",
}  # fmt: skip
ALIAS = re.compile(r"\\[A-Za-z]+")
HEDGES = re.compile(
    r"^(?:\s|(?:approximately|about|exactly|roughly|equal to|around)\b|\\(?:approx|sim|therefore)(?![a-z])|"
    r"\\text ?\{[^{}\d]*(?:\bis|\bare|\bequals|=|:) *\})+",
    re.I,
)
COMMAND_WORDS = re.compile(rf"(?<![\\A-Za-z])(?:(pi|sqrt|infinity|infty|inf|oo)(?![A-Za-z])|({FUNCTIONS})(?= ?[(^]))")
ORDINAL = re.compile(r"(?<=\d) ?\^? ?\{? ?(?:\\text ?\{ ?)?(?:st|nd|rd|th) ?\}? ?\}?$")  # 21st
ALL_REALS = re.compile(
    r"(?:\\text ?\{ ?)?(?:the set of )?(?:all )?real numbers?(?: x)? ?\}?|(?:\\text ?\{ ?)?all reals ?\}?", re.I
)
FOR_INTEGERS = re.compile(  # ", k \in \mathbb{Z}" at the end
    r"(?<=[\w})])(?: *[,;(]|"
    r" *,? *\\text *\{ *,? *(?:for|where|with)[^{}]*\}) *[a-z] *\\in *\\math(?:bb|bf) *\{?[ZN]\}? *\)?$"
)
REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20}) ?\\(?:overline|bar|dot) ?\{ ?(\d{1,20}) ?\}")  # 0.1\overline{6}
GOING_ON = re.compile(r"(\d{0,20})\.(\d{0,20}?)(?:(\d)\3\3+|(\d{2,5})\4\4+|(\d{6,9})\5+) ?\\ldots")  # 0.1666...
OUTWARD = re.compile(r"([\[\]]) ?([^\[\](),;]*[^\[\](),; ]) ?([,;])([^\[\](),;]*[^\[\](),; ]) ?([\[\]])")  # ]0, 1[
MIXED = re.compile(r"(?<=\d) (\d+) ?/ ?(\d+)(?![\d.])")  # the mixed number 1 1/2
DOLLARS = re.compile(r"\$ ?([,;]|,? ?and|,? ?or) ?\$")  # $1$, $2$
DEGREE = re.compile(r"\^ ?\{ ?\\circ ?\}")
THOUSANDS = re.compile(r"(?<=\d)(?:,\\! *|\{,\}|\\,|\{\\,\})(?=\d{3}(?!\d))")  # 10,\!000 and 10{,}000 and 10\,000
SOMETHING = re.compile(r"[^\s${}.,;()\[\]\\+*/=-]")
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\d{3})+|(?:'\d{3})+)(?![\d,'])")
SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d ])")


def normalise(text: str) -> str:
    """The one spelling of an answer; empty if nothing is left. Linear in the text."""
    text = _unicode(text.replace("\x00", "").strip()).removeprefix("**").removesuffix("**").rstrip("\\")
    text = _latex(text) if "\\" in text else " ".join(text.replace("{,}", "\u2063").replace("~", " ").split())
    text = COMMAND_WORDS.sub(_command, text.replace("...", r"\ldots ").replace("**", "^"))
    if r"\ldots" in text:
        text = GOING_ON.sub(_repeating, text)
    if "[" in text or "]" in text:
        text = OUTWARD.sub(_inward, text)
    if "/" in text:
        text = MIXED.sub(r"\\frac{\1}{\2}", text)
    if "$" in text:
        text = DOLLARS.sub(r" \1 ", text)
    if r"\math" in text:
        text = FOR_INTEGERS.sub("", text)
    text = HEDGES.sub("", _thousands(text).replace("\u2063", ""))
    text = " ".join(_trim(text).split())
    text = ORDINAL.sub("", text) if text[:1].isdigit() else text
    text = r"\mathbb{R}" if "real" in text and ALL_REALS.fullmatch(text) else text
    return text if SOMETHING.search(text) or text.replace(" ", "") == r"\{\}" else ""


def _latex(text: str) -> str:
    """Layout commands dropped, other commands in one spelling."""
    text = THOUSANDS.sub("\u2063", text).replace("\\!", "").replace("\\,", " ")
    text = REPEATING.sub(_repeating, SPACES.sub(" ", LAYOUT.sub(" ", text)))
    text = UPRIGHT.sub(_upright, text)
    text = WRAPPED_NUMBER.sub(r"\1", WORDS.sub(r"\\text", COLOR.sub("", text)))
    for _ in range(3):  # nested wrappers
        text = BOLD.sub(r"\1", text)
    text = ALIAS.sub(lambda match: _spaced(ALIASES.get(match.group(), match.group())), text)
    text = text.replace("\\$", "$").replace("\\%", "%").replace("\\#", "#")
    return DEGREE.sub(r"^\\circ ", text)


def _repeating(match: re.Match[str]) -> str:
    """A repeating decimal as an exact fraction."""
    whole, start, *blocks = match.groups()
    block = next(filter(None, blocks))
    tail = Fraction(int(block), 10 ** len(block) - 1) / 10 ** len(start)
    value = Fraction(int(whole + start or "0"), 10 ** len(start)) + tail
    return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _upright(match: re.Match[str]) -> str:
    """The constant or function that was set in upright type."""
    return match[1] if len(match[1]) == 1 else f"\\{match[1]} "


def _inward(match: re.Match[str]) -> str:
    """]a, b[ as (a, b)."""
    first, a, comma, b, last = match.groups()
    return ("(" if first == "]" else "[") + a + comma + b + (")" if last == "[" else "]")


def _command(match: re.Match[str]) -> str:
    """The command for a word such as pi or infinity."""
    return r"\infty " if match[1] in ("infinity", "inf", "oo") else f"\\{match[1] or match[2]} "


def _spaced(command: str) -> str:
    return command + " " if command[-1].isalpha() else command


def _unicode(text: str) -> str:
    if text.isascii():
        return text
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: "^{" + m.group().translate(SUPERSCRIPTS) + "}", text)
    text = "".join(_fraction(c) for c in text)
    text = re.sub(r"√ ?\(", r"\\sqrt(", text)
    text = re.sub(r"√ ?(\d+|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", r"\sqrt ")
    text = text.translate(str.maketrans(SYMBOLS))
    return unicodedata.normalize("NFKC", text).translate(str.maketrans(SYMBOLS))


def _fraction(character: str) -> str:
    """½ as \\frac{1}{2}; other characters unchanged."""
    if unicodedata.category(character) != "No" or "⁄" not in (folded := unicodedata.normalize("NFKC", character)):
        return character
    top, bottom = folded.split("⁄")
    return f"\\frac{{{top}}}{{{bottom}}}" if bottom else character


def _thousands(text: str) -> str:
    """Joins 1,234,567 and 1 234 567 outside of brackets; inside, a comma divides the parts of a pair or a set."""
    if not any(mark in text for mark in ", '"):
        return text

    def join(match: re.Match[str]) -> str:
        before = text[: match.start()]
        inside = sum(before.count(c) for c in "([") - sum(before.count(c) for c in ")]")
        return match.group() if inside > 0 or r"\{" in before else re.sub("[, ']", "", match.group())

    if len(text) > 2000:  # no answer that a person would write; kept linear
        return text
    text = GROUPED.sub(join, text)
    return SPACED.sub(join, text)


def _trim(text: str) -> str:
    """Drops enclosing dollars and quotes, and punctuation at the end."""
    text = text.strip()
    while True:
        shorter = text.rstrip(".,; ")
        if re.search(r"[})\]]\$$", shorter) and shorter.count("$") == 1:
            shorter = shorter[:-1]
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ('"', '"'), ("`", "`")):
            inside = shorter[len(opening) : -len(closing)]
            if shorter.startswith(opening) and shorter.endswith(closing) and inside.strip() and opening not in inside:
                shorter = inside.strip()
                break
        if shorter == text:
            return text
        text = shorter
