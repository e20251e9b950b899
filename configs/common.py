"""What all configurations share: every key with its default, and the parsing of arguments after the colon.

Configuration files hold plain values and strings; strings like 'clip(low=0.2, high=0.28)' name a function and its
options (lanpo_jax/spec.py). Any key can be changed on the command line: --config.optimizer.rate=1e-6.
"""

import json

from ml_collections import ConfigDict

from configs import objectives

OBJECTIVES = objectives.OBJECTIVES  # name -> slots of the loss; each with its paper in configs/objectives.py


def base() -> ConfigDict:
    """Every key that exists, with the defaults of a run on users' own checkpoint and problems."""
    c = ConfigDict()
    c.seed = 0
    c.resume = ""  # folder of another run to go on from, with all of its state; this run's own checkpoint comes first
    c.steps = 100  # rollout phases; each makes learner.mini_batches optimizer updates
    c.profile = 0  # steps of which a profiler trace is written to RUN/profile, from the second on
    c.max_tokens = 0  # ends after the step by which so many tokens were generated, principles included; 0: no limit

    c.model = ConfigDict()
    c.model.path = ""  # HF checkpoint directory, .gguf file, 'smollm2-135m-instruct', or 'random' (from model.hf)
    c.model.hf = ""  # JSON of an HF config.json: the sizes of a model that is not loaded
    c.model.tokenizer = ""  # where not beside the weights: a folder, tokenizer.json, SentencePiece .model, 'train(..)'
    c.model.dtype = "float32"  # of activations: bfloat16 on accelerators
    c.model.param_dtype = "float32"  # of the master weights
    c.model.scan_layers = False  # True on accelerators: compiles one layer instead of all
    c.model.remat = "none"  # none | dots | full | offload (layer inputs to the host): recomputation instead of memory

    c.mesh = ConfigDict()
    c.mesh.data = 1
    c.mesh.fsdp = -1  # -1: all devices that are left
    c.mesh.tensor = 1

    c.data = ConfigDict()
    c.data.train = ()  # sources, e.g. ("file(path='train.jsonl')",)
    c.data.eval = ConfigDict()  # set name -> source
    c.data.prompt_limit = 1024  # tokens of a prompt, guidance included
    c.data.overlong = "drop"  # drop | truncate | error: problems whose plain prompt is longer

    c.prompt = ConfigDict()
    c.prompt.style = "full"  # full: chat models of some size | short: small ones, with examples | bare: from scratch
    c.prompt.answer = "boxed"  # how the answer is to be given: boxed | number
    c.prompt.instruction = ""  # replaces the sentence that asks for the answer's form
    c.prompt.system = ""
    c.prompt.examples = ""  # a problem family whose three solved examples are shown, e.g. "stories(digits=1)"
    c.prompt.template = ""  # replaces the model's chat template (jinja)

    c.rollout = ConfigDict()
    c.rollout.episode = "lanpo"  # 'direct' is plain GRPO; 'lanpo(modes={"plain": .5, "intra": .25, "inter": .25})'
    c.rollout.retriever = "tfidf"  # tfidf(k=1, threshold=.2) | llm(gamma=.9), the policy judges | random
    c.rollout.pool_size = 100_000
    c.rollout.prompts = 16
    c.rollout.group = 8
    c.rollout.refills = 3  # further batches of problems a step may draw for groups that objective.filter drops
    c.rollout.max_new_tokens = 512
    c.rollout.temperature = 1.0
    c.rollout.rows = 128  # completions decoded together
    c.rollout.cache_gib = 0.0  # memory for their prompts and tokens: fewer rows where it is not enough; 0: no limit
    c.rollout.dtype = ""  # of the sampler's weights and activations, e.g. bfloat16; "": model.dtype. See mismatch/*
    # Truncation: the sampler is then another policy than the trainer's, whose log-probabilities are of the whole.
    c.rollout.top_k = 0  # 0: off
    c.rollout.top_p = 1.0
    c.rollout.min_p = 0.0
    c.rollout.stop = ()  # texts that end a completion

    c.reward = ConfigDict()
    c.reward.functions = ("lanpo_jax.rewards.math.verify",)
    c.reward.weights = (1.0,)

    c.objective = ConfigDict()
    c.objective.filter = "keep_all"
    c.objective.advantage = "group_norm"
    c.objective.ratio = "token"
    c.objective.surrogate = "clip(low=0.2, high=0.2)"
    c.objective.weights = "none"
    c.objective.aggregate = "token_mean"
    c.objective.kl = "none"
    c.objective.reward_kl = "none"
    c.objective.value = "none"
    c.objective.whole = "none"

    c.optimizer = ConfigDict()
    c.optimizer.rate = 1e-6
    c.optimizer.warmup = 10  # updates
    c.optimizer.decay = "constant"  # constant | cosine | linear
    c.optimizer.floor = 0.1  # share of the rate that is left at the end of a decay
    c.optimizer.b1 = 0.9
    c.optimizer.b2 = 0.99
    c.optimizer.eps = 1e-8
    c.optimizer.weight_decay = 0.0
    c.optimizer.clip = 1.0  # global gradient norm; 0: none
    c.optimizer.mu_dtype = ""  # of Adam's first moment: bfloat16, or "" for model.param_dtype
    c.optimizer.offload = False  # True: Adam's moments stay in the host's memory between updates

    c.lora = ConfigDict()  # adapters in place of the weights (arXiv 2106.09685), for small devices
    c.lora.rank = 0  # 0: all weights are trained
    c.lora.alpha = 0.0  # their product counts alpha / rank; 0: 1
    c.lora.targets = ("q", "k", "v", "o", "gate", "up", "down")

    c.learner = ConfigDict()
    c.learner.mini_batches = 1  # optimizer updates per step, over whole groups
    c.learner.row_tokens = 0  # 0: one completion a row; else rows of this length hold several, prompts once
    c.learner.micro_rows = 0  # rows in memory at a time; 0: one a device
    c.learner.max_unsound = 5  # steps in a row without a finite loss and gradient that end the run; 0: never

    c.warmup = ConfigDict()  # supervised steps before RL, for models from scratch
    c.warmup.steps = 0
    c.warmup.demonstrations = "solutions"  # or 'traces(slips=0.45)'
    c.warmup.guided = False  # every other demonstration under a guided prompt, so that those mean something
    c.warmup.rows = 64
    c.warmup.rate = 1e-3

    c.eval = ConfigDict()
    c.eval.every = 20  # steps; also before the first and after the last; 0: only those two
    c.eval.modes = ("zero_shot",)  # and "self_correct": a second look, "pool": principles from the run's pool
    c.eval.samples = 8  # per problem
    c.eval.temperature = 1.0
    c.eval.limit = 0  # problems of each set; 0: all

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 20
    c.checkpoint.keep = 2
    c.checkpoint.keep_every = 0  # and every so many steps for good
    c.checkpoint.best = ""  # and the best by a metric, e.g. "val/stories/mean@4"
    c.checkpoint.best_is = "max"  # or min
    c.checkpoint.accept_changes = False  # True: resume with another seed, model, group size or other problems
    c.checkpoint.max_hours = 0.0  # save and end after so long; 0: no limit

    c.log = ConfigDict()
    c.log.samples = 2  # completions printed at an evaluation
    c.log.entropy = True  # actor/entropy of every update; costs a few percent of it
    c.log.rollouts = 50  # steps whose rollouts are kept as text
    return c


def parse(text: str, defaults: dict) -> dict:
    """'algo=gspo,model=/path' to a dict with the types of `defaults`. Raises ValueError for an unknown name."""
    found = dict(defaults)
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name not in defaults:
            raise ValueError(
                f"Configuration argument {name!r} is not known; there are: {', '.join(defaults) or 'none'}."
            )
        kind = type(defaults[name])
        found[name] = value in ("1", "true", "True", "") if kind is bool else kind(value)
    return found


# What the policy is helped with, by one word: the rollout.episode of a run of so many steps.
FEEDBACK = {
    "lanpo": "{lanpo}",
    "none": "direct",  # plain GRPO
    # Zhang et al. 2025, arXiv 2510.19807: hints where a whole group fails, after a start without (50 steps there); for
    # problems with hints or solutions.
    "scaffold": "scaffold(warmup={warmup}, tiers=3, parts=4, samples=1)",
    # Zhang et al. 2025, arXiv 2509.25004: hard problems made simpler, medium ones varied. The thresholds are ours.
    "restructure": "restructure(hard=0.3, medium=0.7, share=0.5)",
    # After Mao et al. 2026, arXiv 2606.01281: stored groups for uninformative ones. Size and age are ours.
    "replay": "replay(size=64, age=16)",
}


def episode(feedback: str, steps: int, lanpo: str = "lanpo") -> str:
    """The episode of a name in `FEEDBACK`, LANPO with the options of this configuration."""
    if feedback not in FEEDBACK:
        raise ValueError(f"feedback={feedback!r} is not known; there are: {', '.join(FEEDBACK)}.")
    return FEEDBACK[feedback].replace("{lanpo}", lanpo).replace("{warmup}", str(round(0.15 * steps)))


QWEN_ARGUMENTS = {"model": "", "data": "", "eval": "", "algo": "grpo", "feedback": "lanpo"}


def qwen(text: str, hf: dict, *, prompts: int = 32, group: int = 16, tokens: int = 3072) -> ConfigDict:
    """A published Qwen as the user's own checkpoint directory, on accelerators.

    Arguments: model=DIR, data=FILE and eval=FILE (JSONL, CSV or parquet), algo=NAME, feedback=NAME (`FEEDBACK`).
    """
    args = parse(text, QWEN_ARGUMENTS)
    c = base()
    c.model.path = args["model"]
    c.model.hf = json.dumps(hf)
    c.model.dtype = "bfloat16"
    c.model.scan_layers = True
    c.model.remat = "full"
    c.steps = 330
    if args["data"]:
        c.data.train = (f"file(path={args['data']!r})",)
    if args["eval"]:
        c.data.eval.test = f"file(path={args['eval']!r})"
    c.rollout.episode = episode(args["feedback"], c.steps)
    c.rollout.prompts, c.rollout.group, c.rollout.max_new_tokens = prompts, group, tokens
    c.rollout.rows = 256
    method(c, args["algo"])
    return c


def method(c: ConfigDict, algo: str) -> None:
    """Sets the loss to a preset, and what that method publishes outside of the loss."""
    algo, limit = objectives.named(algo), c.rollout.max_new_tokens
    c.objective.update(objectives.preset(algo, limit))
    if algo in ("dapo", "entropy_top_20"):  # DAPO's soft overlong penalty, over the last fifth of the limit
        c.reward.functions += (f"lanpo_jax.rewards.shaping.overlong(limit={limit}, buffer={limit // 5})",)
        c.reward.weights += (1.0,)
    if algo == "riskpo":
        c.rollout.prompts -= c.rollout.prompts % 5  # whole bundles
    if algo == "rover":
        c.rollout.temperature = 0.6
