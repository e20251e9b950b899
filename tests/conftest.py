"""What every test shares: eight host devices, a persistent compilation cache, a one-device mesh."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax
import pytest

from lanpo_jax import sharding


@pytest.fixture(scope="session")
def mesh():
    """One device. Tests of sharding make their own meshes over eight."""
    return sharding.make_mesh(devices=jax.devices()[:1])


@pytest.fixture
def shared():
    """The folder of problem sets and cases that developers have beside the checkout; tests skip without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared problem sets are not here")
    return folder
