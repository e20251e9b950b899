r"""LaTeX answer boxes, `\boxed{...}`, found by counting braces."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
BARE = re.compile(r"[^\s${}\\]+")  # what `\boxed 5` without braces holds
SIMPLE = re.compile(r"\{([^{}\\]{0,60})\}")
DEEPEST = 4  # boxes within boxes that are unwrapped


def boxes(text: str) -> Iterator[tuple[int, str]]:
    """Yields (end, content) of every complete outermost box, first to last, in time linear in the text.

    A box that is never closed is no box: generation stopped inside it. What it holds is searched nevertheless.
    """
    closing: dict[int, int] | None = None
    position = 0
    while match := BOX.search(text, position):
        position = match.end()
        if text.startswith("{", position):
            if simple := SIMPLE.match(text, position):  # most boxes, without pairing all braces of the text
                position = simple.end()
                yield position, simple[1]
                continue
            closing = _closing(text) if closing is None else closing
            if position in closing:
                yield closing[position] + 1, text[position + 1 : closing[position]]
                position = closing[position] + 1
        elif bare := BARE.match(text, position):
            position = bare.end()
            yield position, bare.group()


def last(text: str) -> str | None:
    """The content of the last complete box, a box within it unwrapped, or None."""
    if "box" not in text:
        return None
    content = _last_outer(text)
    for _ in range(DEEPEST):
        if content is None or not BOX.match(content.strip()):
            break
        content = _last_outer(content.strip()) or content
    return content


def _last_outer(text: str) -> str | None:
    ends = collections.deque(boxes(text), maxlen=1)
    return ends[0][1] if ends else None


def _closing(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of the brace that closes it; escaped braces do not count."""
    stack: list[int] = []
    closing: dict[int, int] = {}
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closing[stack.pop()] = match.start()
    return closing
