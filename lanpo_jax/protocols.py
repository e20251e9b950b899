"""The episodes by name, and what a run has to be prepared for with each of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from lanpo_jax import episodes, scaffolds, spec

EPISODES: dict[str, Callable] = {
    "direct": episodes.direct,
    "lanpo": episodes.lanpo,
    "scaffold": scaffolds.scaffold,
    "restructure": scaffolds.restructure,
    "replay": scaffolds.replay,
}


@dataclasses.dataclass(frozen=True)
class Demands:
    """What the groups of an episode ask of the learner, fixed for a run: its programs are compiled for it."""

    extra: int = 0  # families beyond one per problem
    mixed: bool = False  # families of several prompts, or of a number that varies
    off_policy: bool = False  # completions that the policy did not sample, or not under the prompt they train under
    corrected: bool = False  # and whose ratio is against the present policy: the objective has to weight them


def demands(episode: functools.partial, prompts: int) -> Demands:
    """The demands of an episode, with the options of its config string, on steps of so many problems."""
    options = {name: option.default for name, option in spec.options(episode.func).items()} | episode.keywords
    if episode.func is scaffolds.scaffold:
        return Demands(mixed=True)
    if episode.func is scaffolds.restructure:
        return Demands(extra=int(options["share"] * prompts), mixed=True)
    if episode.func is scaffolds.replay:
        return Demands(off_policy=not options["decoupled"], corrected=options["decoupled"])
    weighted = bool(options.get("strip_guidance") and options.get("strip_ratio"))
    return Demands(mixed=options.get("mix_level") == "rollout", off_policy=weighted)
