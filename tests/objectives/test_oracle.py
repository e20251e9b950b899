"""Agreement with verl, TRL and OpenRLHF in value, gradient and metrics, to 1e-7 in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

AGGREGATES = {
    "token-mean": "token_mean",
    "token-sum": "token_mean",  # its sum, without the division
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant(length=6)",
}
VERL = {
    "vanilla": {"surrogate": "clip(low=0.2, high=0.28, dual=3.0)"},
    "gspo": {"ratio": "sequence", "surrogate": "clip(low=0.2, high=0.28)"},
    "cispo": {"surrogate": "cispo(floor=0.8, cap=1.28)"},
    "sapo": {"surrogate": "soft"},
    "geo_mean": {"surrogate": "geometric(low=0.2, high=0.28)"},
    "gpg": {"surrogate": "likelihood"},
}
CLIP = "clip(low=0.2, high=0.28)"
TRL = {
    "grpo/token": {"surrogate": CLIP, "aggregate": "sequence_mean"},
    "grpo/sequence": {"ratio": "sequence", "surrogate": CLIP, "aggregate": "sequence_mean"},
    "bnpo/token": {"surrogate": CLIP, "aggregate": "token_mean"},
    "dapo/token": {"surrogate": CLIP, "aggregate": "token_mean"},
    "dr_grpo/token": {"surrogate": CLIP, "aggregate": "constant(length=16)"},
    "cispo/token": {"surrogate": "cispo(cap=0.28)", "aggregate": "token_mean"},
    "sapo/token": {"surrogate": "soft", "aggregate": "sequence_mean"},
    "luspo/sequence": {"ratio": "sequence", "surrogate": CLIP, "aggregate": "sequence_sum"},
}


@pytest.mark.parametrize(
    "case",
    [f"{loss}/{mean}" for loss in VERL for mean in AGGREGATES if loss in ("vanilla", "cispo", "gpg")]
    + [f"{loss}/seq-mean-token-mean" for loss in ("gspo", "sapo", "geo_mean")],
)
def test_verl(case, oracle, batch, logprobs, build, evaluate):
    name, mean = case.split("/")
    expected = oracle["verl_policy_losses"][case]
    value, gradient, metrics = evaluate(build(**VERL[name], aggregate=AGGREGATES[mean]), logprobs, batch)
    scale = float(jnp.sum(batch.mask)) if mean == "token-sum" else 1.0
    np.testing.assert_allclose(value * scale, expected["loss"], atol=1e-7)
    np.testing.assert_allclose(gradient * scale, expected["grad_logp"], atol=1e-7)
    other = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower") if name == "geo_mean" else ()  # see surrogates.geometric
    for metric, number in expected["metrics"].items():
        if metric in other:
            continue
        np.testing.assert_allclose(metrics[metric], number, atol=1e-7, err_msg=metric)
