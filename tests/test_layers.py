"""The house keeps its shape: imports point down, and each outside library has its room."""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).parent.parent / "lanpo_jax"
# Lowest first. A module imports from its own layer and those below it.
LAYERS = [
    {"types", "spec", "boxes", "scores", "cli"},
    {"objectives", "models", "sharding", "families"},
    {"batching", "sampling", "checkpoint", "optimizer", "metrics", "sources"},
    {"data", "rewards", "experience", "learner", "console"},
    {"episodes", "scaffolds", "protocols", "demonstrations", "numerical", "warmup", "votes", "inference"},
    {"session"},
    {"policy"},
    {"evaluate", "generate", "export"},
    {"train"},
    {"main"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FENCES = {  # library -> the only files that may import it
    "optax": {"optimizer.py"},
    "orbax": {"checkpoint.py"},
    "tensorboard": {"metrics.py"},
    "flax": {"models/qwen.py"},
    "sklearn": {"experience/features.py"},
    "gguf": {"models/gguf_format.py"},
    "safetensors": {"models/hf_format.py"},
    "tensorflow_datasets": {"sources.py"},
    "math_verify": {"rewards/workers.py", "rewards/symbolic.py"},
    "ml_collections": {"train.py", "cli.py", "policy.py"},
    "rich": {"console.py"},
}
NO_JAX = (
    *("experience/", "rewards/", "episodes.py", "scaffolds.py", "protocols.py", "inference.py", "votes.py"),
    *("scores.py", "data.py", "families.py", "sources.py", "spec.py", "types.py"),
)


def files():
    return sorted(PACKAGE.rglob("*.py"))


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def imports(path):
    """Dotted names of everything a file imports, at any depth of the code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(dotted):
    """The room of `lanpo_jax.models.qwen` is models, that of `lanpo_jax.spec` spec."""
    return dotted.split(".")[1]


def test_imports_point_down():
    wrong = []
    for path in files():
        own = name(path).split("/")[0].removesuffix(".py")
        if own == "__init__":
            continue
        for dotted in imports(path):
            if dotted.startswith("lanpo_jax.") and LEVEL[room(dotted)] > LEVEL[own]:
                wrong.append(f"{name(path)} imports {dotted}")
    assert not wrong


def test_outside_libraries_have_their_rooms():
    wrong = [
        f"{name(path)} imports {dotted}"
        for path in files()
        for dotted in imports(path)
        if name(path) not in FENCES.get(dotted.split(".")[0], {name(path)})
    ]
    assert not wrong


def test_host_rooms_import_no_jax():
    wrong = [
        name(path)
        for path in files()
        if name(path).startswith(NO_JAX) and any(d.split(".")[0] in ("jax", "flax") for d in imports(path))
    ]
    assert not wrong


def test_objectives_know_no_model_mesh_or_config():
    wrong = [
        f"{name(path)} imports {dotted}"
        for path in files()
        if name(path).startswith("objectives/")
        for dotted in imports(path)
        if dotted.startswith(("lanpo_jax.models", "lanpo_jax.sharding", "ml_collections", "flax"))
    ]
    assert not wrong


def test_only_sharding_names_a_partition_spec():
    wrong = [name(p) for p in files() if "PartitionSpec" in p.read_text() and name(p) != "sharding.py"]
    assert not wrong


def test_programs_are_compiled_in_few_places():
    """The update and scoring, the sampler, and the donated write of weights; everything else is inside one of these."""
    found = {name(p) for p in files() if "jax.jit" in p.read_text()}
    assert found == {"learner.py", "sampling/programs.py", "models/weights.py"}


def test_nothing_evaluates_text():
    """Model output is untrusted: no eval, exec, parse_expr, sympify or shell anywhere in the package."""
    banned = {"eval", "exec", "parse_expr", "sympify", "system", "popen"}
    wrong = []
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in banned and not (called == "eval" and isinstance(node.func, ast.Attribute)):
                    wrong.append(f"{name(path)}:{node.lineno} {called}")
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append(f"{name(path)}:{node.lineno} shell=")
    assert not wrong
