"""What a person sees while a run goes on: phases with rate and time left, a line a step, sample completions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import rich.console
import rich.markup
import rich.progress

from lanpo_jax.types import Group

Advance = Callable[[int, int], None]  # (done, total)


class Console:
    """Live progress bars on a terminal; plain lines elsewhere; nothing at all when `quiet` (other processes)."""

    def __init__(self, quiet: bool = False):
        self._console = rich.console.Console(quiet=quiet, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One plain line."""
        self._console.print(rich.markup.escape(text))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Advance]:
        """A phase of a step. On a terminal a bar with time left, gone when the phase ends."""
        if not self._console.is_terminal:
            yield lambda done, total: None
            return
        columns = (
            rich.progress.TextColumn("  {task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        with rich.progress.Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows of text under column heads, the first column to the left, the others to the right."""
        lines = [list(columns), *map(list, rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines)]
        for head, *cells in lines:
            cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:])]
            self.say("  ".join([head.ljust(widths[0]), *cells]).rstrip())

    def samples(self, title: str, groups: Sequence[Group], count: int) -> None:
        """A few completions, the first of each group, with verdict and gold answer."""
        for group in groups[:count]:
            completion, right = group.generation.completions[0], bool(group.grades.correct[0])
            verdict = "right" if right else f"wrong, gold {group.problem.answer}"
            self.say(f"  {title}: {_line(group.problem.text, 110)}")
            self.say(f"    -> {_line(completion.text, 160)}  [{verdict}]")


class Eta:
    """Time left, from the phases seen so far. The first of a kind compiles and does not count once there are more."""

    def __init__(self):
        self._seconds: dict[str, list[float]] = {}

    def spent(self, phase: str, seconds: float) -> None:
        self._seconds.setdefault(phase, []).append(seconds)

    def left(self, **remaining: int) -> str:
        """Such as '4:05' for left(step=12, eval=1); phases not seen yet count nothing."""
        total = 0.0
        for phase, count in remaining.items():
            seen = self._seconds.get(phase, [0.0])
            seen = seen[1:] or seen
            total += count * sum(seen) / len(seen)
        return clock(total)


def clock(seconds: float) -> str:
    """245 -> '4:05', 4000 -> '1:06:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _line(text: str, width: int) -> str:
    """One line of a text, control characters made visible: model output must not steer the terminal."""
    flat = " ".join(text.split())
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
    return flat if len(flat) <= width else flat[: width - 1] + "…"
