r"""Where a completion states its answer: the last of `\boxed{}`, `#### N`, `<answer>` and "the answer is N".

One extractor serves training and evaluation. What a reasoning block holds is no answer, an unfinished box or tag is no
answer, and of several answers the last one counts, so a retracted answer earns nothing. Text of any length is read in
time linear in it.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

from lanpo_jax import boxes

# strict: a stated answer only; bare: or the whole completion if it is nothing but a value; last: or its last number.
MODES = ("strict", "bare", "last")
LONGEST = 200  # characters of a stated answer outside of a box or tag

ONE_BOX = re.compile(r"\\(?:boxed|fbox)\{([^{}\\]{0,60})\}")
REASONING_END = re.compile(r"</\s?(?:think|thinking|reasoning|thought)\s?>", re.IGNORECASE)
REASONING_START = re.compile(r"<\s?(?:think|thinking|reasoning|thought)\s?>", re.IGNORECASE)
END_MARK = re.compile(r"(?:<\|[\w ]{1,30}\|>|</s>|<eos>|<end_of_turn>)\s*\Z")
TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]{1,200})")
PHRASE = re.compile(
    r"\b(?:answers?|correct (?:option|choice))\b(?:[ \t]+(?:to|for)\b[^.\n:=]{1,60}?)?[ \t*_]*"
    r"(?:\b(?:is|are|was|would be|will be|equals)\b(?:[ \t]+(?:therefore|thus|hence|then|simply|just|indeed)\b)?"
    r"[ \t*_]*[:=：]?|[:=：])|答案[ \t]*(?:是|为|[:：])"
    r"|^[ \t#*_]*(?:the[ \t]+)?final[ \t]+answer[ \t#*_]*\n",  # a heading of its own line
    re.IGNORECASE | re.MULTILINE,
)
PHRASE_WORDS = re.compile("answer|correct|答案", re.IGNORECASE)
NUMBER = re.compile(
    r"[-+−]?[ \t]?(?:\\?[$€£])?[ \t]?[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[ \t]*/[ \t]*\d+)?(?:[ \t]*\\?%)?"
)
# What may follow a number only if the answer goes on: an operator with an operand, a variable, a further answer.
GOES_ON = re.compile(
    r"[eE][-+]?\d|\s+\d+\s*/\s*\d|"
    r"\s*(?:[-+*/^=<>×·−]\s*(?:\d|[({\\√]|[a-zA-Z]\b)|[_:][\d{]|\\[a-zA-Z]|[,;]\s*[-+−]?\d|(?:pi|sqrt)\b|[√π½°])"
    r"|\s?[a-zA-Z](?:\b(?=\s*[-+*/^=)])|\^)|[a-zA-Z]\b|[^.]{0,80}?\b(?:or|and)\s+[-+−$\\]*\d"
)
PROSE = re.compile(r"[,;]?\s+(?:because|since|which|as|so|when|where|for|I hope)\b|,\s+[a-z]{2,}\b(?<!and)(?<!or)")
SENTENCE_END = re.compile(r"\n|。|\.(?=\s|$)|[!?](?=\s|$)|\.(?=\*)")
LISTED = re.compile(r"[-−]?[$€£]?(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")  # with its neighbours: "1,1,1" is a list
FRAMES = (("**", "**"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"), ('"', '"'), ("“", "”"), ("$", "$"))
CURRENCY = re.compile(r"\$\s?\d[\d,.]*\s+[a-zA-Z]{2}")  # "$5 each": no formula begins here


def extract(text: str, mode: str = "strict") -> str | None:
    """The answer that a completion states, as written there, or None if it states none (see MODES)."""
    text = after_reasoning(_without_marks(text)) if "<" in text else text
    found = _stated(text)
    if found is None and mode in ("bare", "last"):
        found = _bare(text)
    if found is None and mode == "last":
        numbers = collections.deque(LISTED.finditer(text), maxlen=1)
        found = numbers[0].group() if numbers else None
    return found


def _without_marks(text: str) -> str:
    """Without the tokens that end a text, such as <|im_end|>, should the decoder have kept them."""
    while match := END_MARK.search(text, max(0, len(text) - 40)):
        text = text[: match.start()]
    return text


def after_reasoning(text: str) -> str:
    """What follows the last reasoning block; nothing of a block that was never closed."""
    ends = collections.deque(REASONING_END.finditer(text), maxlen=1)
    rest = text[ends[0].end() :] if ends else text
    start = REASONING_START.search(rest)
    return rest[: start.start()] if start else rest


def _stated(text: str) -> str | None:
    """The stated answer that ends last; words without a digit count only if nothing else is stated."""
    if text.count("box") == 1 and (match := ONE_BOX.search(text)):
        found = [(match.end(), match[1])]  # the usual case
    else:
        found = list(collections.deque(boxes.boxes(text), maxlen=1)) if "\\" in text else []
    if "</" in text:
        found += [(end, _stated(content) or content) for end, content in _tags(text)]
    if "####" in text:
        found += [(match.end(), match[1].strip()) for match in HASH.finditer(text) if _is_value(match[1])]
    phrases = list(_phrases(text)) if PHRASE_WORDS.search(text) else []
    found += [(end, value) for end, value in phrases if re.search(r"\d", value)]
    if found:
        answer = max(found)[1]
        return boxes.last(answer) or answer
    return phrases[-1][1] if phrases else None


def _tags(text: str) -> Iterator[tuple[int, str]]:
    """The last complete pair of answer tags, as (end, content); the content holds no further tag."""
    opened = last = None
    for match in TAG.finditer(text):
        if not match[1]:
            opened = match.end()
        elif opened is not None:
            last, opened = (match.end(), text[opened : match.start()].strip()), None
    if last:
        yield last


def _phrases(text: str) -> Iterator[tuple[int, str]]:
    """(end, value) of what follows each "answer is", "answer:" or a heading "Final Answer"."""
    for match in PHRASE.finditer(text):
        rest = text[match.end() : match.end() + LONGEST]
        value = _value(rest.lstrip(" \t\n*_:=："))
        if value:
            yield match.end() + 1, value


def _value(rest: str) -> str:
    """The value at the start of a piece of prose: a framed formula, a number with its unit, or the sentence."""
    for opening, closing in FRAMES:
        if rest.startswith(opening) and not CURRENCY.match(rest):
            inner, end, after = rest[len(opening) :].partition(closing)
            if end and inner.strip() and "\n\n" not in inner:
                if re.match(r",?\s*(?:and|or)?\s*" + re.escape(opening) + r"\S", after):  # "$1$ or $2$"
                    return _sentence(rest).replace(opening, " ").replace(closing, " ")
                return _value(inner.strip()) if opening == "**" else inner.strip() + ("%" if after[:1] == "%" else "")
    sentence = _sentence(rest)
    number = NUMBER.match(sentence)
    if number and not GOES_ON.match(sentence, number.end()):
        return number.group().rstrip(", \t")
    return sentence


def _sentence(rest: str) -> str:
    end = SENTENCE_END.search(rest)
    sentence = rest[: end.start()] if end else rest
    prose = PROSE.search(sentence)
    return (sentence[: prose.start()] if prose else sentence).strip(" \t*_`")


def _is_value(text: str) -> bool:
    """Whether a line is a value rather than a heading such as "Step 2" or "2. Compute the sum"."""
    starts = re.match(r"\s*[-+−$€£\\(\[{*]*\s*(?:\d|\.\d|[a-zA-Z](?![a-zA-Z']|\s+[a-z]{2})|[\\√π∞½])", text)
    return (
        bool(starts)
        and not re.match(r"\s*\d+[.):]\s+[A-Za-z]", text)
        and not re.search(r"[a-z]{2}\s+[a-z]{2,}\s+[a-z]{2}", text)
    )


def _bare(text: str) -> str | None:
    """A completion that is one short line and nothing but a value."""
    text = text.strip()
    if len(text) > LONGEST or "\n" in text or not _is_value(text):
        return None
    return _value(text) if text.startswith(("$", "\\(", "\\[", "*", "`")) else text.rstrip(".")
