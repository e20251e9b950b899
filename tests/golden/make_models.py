"""Makes the golden files of this folder from torch and transformers; run by hand, never by the suite.

    pip install torch transformers gguf accelerate  # made with torch 2.13, transformers 5.24
    python -m tests.golden.make_models PATH/SmolLM2-135M-Instruct.Q4_1.gguf

models/<form>/            tiny random checkpoint of each form, as transformers saves it
models/<form>/golden.npz  tokens int32 [2, 12]; logits float32 [2, 12, V]; loss float32 []: mean cross-entropy over
                          the 2 x 11 next tokens; grad_norms: for each parameter, in the order of `grad_names`, the L2
                          norm of the loss's gradient; grad/<HF name>: the whole gradient of four parameters, [out, in]
smollm2.npz               tokens int32 [T]; positions int32 [Q]; vocab int32 [W]; logits float32 [Q, W] at those;
                          top_ids int32 [Q, 5], top_logits float32 [Q, 5]; logsumexp float32 [Q]; loss float32 []
tokenizer.json.gz         {"texts": [...], "ids": [[...]]}: SmolLM2's, control tokens recognised, nothing added
quants.npz                <type>/bytes uint8 [2, bytes of 256 values], random; <type>/values float32 [2, 256]
templates.json            chat templates, conversations and transformers' renderings (text)
"""

import gzip
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers.integrations.gguf import dequant

from tests.golden import texts

HERE = pathlib.Path(__file__).parent
SIZES = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def rope(kind="default", theta=10000.0, **scaling):
    return {"rope_type": kind, "rope_theta": theta, **scaling}


YARN = rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=16)
LLAMA3 = rope("llama3", 1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
# The last field splits the file into shards with an index.
FORMS = {
    "qwen2": (transformers.Qwen2Config, dict(tie_word_embeddings=False, rope_parameters=rope(theta=1e6)), True),
    "qwen2_tied_yarn": (transformers.Qwen2Config, dict(tie_word_embeddings=True, rope_parameters=YARN), False),
    "qwen3": (
        transformers.Qwen3Config,
        dict(tie_word_embeddings=False, head_dim=16, rope_parameters=rope(theta=1e6)),
        False,
    ),
    "llama_tied": (transformers.LlamaConfig, dict(tie_word_embeddings=True, rope_parameters=rope(theta=1e5)), False),
    "llama_llama3": (transformers.LlamaConfig, dict(tie_word_embeddings=False, rope_parameters=LLAMA3), False),
}
WHOLE_GRADIENTS = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.1.input_layernorm.weight",
)


def make_form(name):
    kind, options, sharded = FORMS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        kind(**SIZES, **options), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():  # norms and biases away from one and zero, matrices large enough for sharp distributions
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.15 + (1.0 if p.ndim == 1 and p.mean() > 0.5 else 0.0))
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="40KB" if sharded else "1GB")
    publish_config(folder / "config.json")

    tokens = torch.randint(0, SIZES["vocab_size"], (2, 12))
    logits = model(tokens, use_cache=False).logits
    loss = next_token_loss(logits, tokens)
    loss.backward()
    grads = {n: p.grad.numpy() for n, p in model.named_parameters()}
    np.savez_compressed(
        folder / "golden.npz",
        tokens=tokens.numpy().astype(np.int32),
        logits=logits.detach().numpy(),
        loss=loss.detach().numpy(),
        grad_names=np.array(list(grads)),
        grad_norms=np.array([np.linalg.norm(g.astype(np.float64)) for g in grads.values()]),
        **{f"grad/{n}": grads[n] for n in WHOLE_GRADIENTS},
    )


def publish_config(file):
    """Rewrites the configuration in the form that published checkpoints have: rope_theta and rope_scaling apart."""
    config = json.loads(file.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def next_token_loss(logits, tokens):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@torch.enable_grad()
def make_smollm2(gguf):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    messages = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples does he have?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens = torch.tensor([tokenizer(text + "Tom has 3 + 4 = 7 apples.")["input_ids"]])
    model.requires_grad_(True)
    model.get_input_embeddings().padding_idx = None  # torch drops the padding token's gradient, and that is <|im_end|>
    logits = model(tokens, use_cache=False).logits
    positions = np.array([0, 5, 17, 31, tokens.shape[1] - 9, tokens.shape[1] - 1])
    vocab = np.array([0, 1, 2, 28, 30, 33, 37, 253, 1000, 5000, 20000, 40000, 49151])
    at = logits[0, positions]
    top = at.topk(5)
    loss = next_token_loss(logits, tokens)
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    at, loss = at.detach(), loss.detach()
    np.savez_compressed(
        HERE / "smollm2.npz",
        grad_names=np.array(list(grads)),
        grad_norms=np.array([float(g.double().norm()) for g in grads.values()]),
        grad_corner=grads["model.layers.3.self_attn.q_proj.weight"][:16, :16].numpy(),
        tokens=tokens[0].numpy().astype(np.int32),
        positions=positions.astype(np.int32),
        vocab=vocab.astype(np.int32),
        logits=at[:, vocab].numpy(),
        top_ids=top.indices.numpy().astype(np.int32),
        top_logits=top.values.detach().numpy(),
        logsumexp=at.logsumexp(-1).detach().numpy(),
        loss=loss.numpy(),
    )


def make_tokenizer(gguf):
    """transformers' own reading of the file, with one correction: SmolLM2's published tokenizer.json cuts every digit
    off before merging (Digits before ByteLevel), which transformers' conversion from GGUF leaves out.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = tokenizer.backend_tokenizer
    uncorrected = [backend.encode(t, add_special_tokens=False).ids for t in texts.TEXTS]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids = [backend.encode(t, add_special_tokens=False).ids for t in texts.TEXTS]
    decoded = [tokenizer.decode(i, clean_up_tokenization_spaces=False) for i in ids]
    print("texts that the correction changes:", sum(a != b for a, b in zip(uncorrected, ids)))
    print("texts that do not come back:", [t for t, d in zip(texts.TEXTS, decoded) if t != d])
    content = json.dumps({"texts": texts.TEXTS, "ids": ids}, ensure_ascii=False, separators=(",", ":"))
    with gzip.GzipFile(HERE / "tokenizer.json.gz", "wb", mtime=0) as file:
        file.write(content.encode())


# type: (id in ggml.h, bytes of a block, where its half-precision scales stand)
QUANTS = {
    "Q4_0": (2, 18, (0,)),
    "Q4_1": (3, 20, (0, 2)),
    "Q5_0": (6, 22, (0,)),
    "Q5_1": (7, 24, (0, 2)),
    "Q8_0": (8, 34, (0,)),
    "Q4_K": (12, 144, (0, 2)),
    "Q5_K": (13, 176, (0, 2)),
    "Q6_K": (14, 210, (208,)),
}


def make_quants():
    rng = np.random.default_rng(0)
    out = {}
    for name, (kind, size, halves) in QUANTS.items():
        blocks = rng.integers(0, 256, (2 if "K" in name else 16, size), np.uint8)
        for at in halves:
            blocks[:, at : at + 2] = rng.uniform(-0.1, 0.1, (len(blocks), 1)).astype(np.float16).view(np.uint8)
        if name.startswith("Q5_") and name != "Q5_K":
            values = np.array([unpack_q5(block, len(halves) == 2) for block in blocks], np.float32)
        else:
            values = dequant.dequantize(torch.from_numpy(blocks.flatten()), kind).numpy()
        out[f"{name}/bytes"] = blocks.reshape(2, -1)
        out[f"{name}/values"] = values.reshape(2, 256)
    np.savez_compressed(HERE / "quants.npz", **out)


def unpack_q5(block, has_minimum):
    """ggml's dequantize_row_q5_0 and _q5_1, value by value; transformers does not know these two."""
    scale, minimum = (float(x) for x in block[:4].view(np.float16))  # without a minimum the second is something else
    high_bits = int.from_bytes(block[-20:-16].tobytes(), "little")
    values = []
    for i in range(32):
        nibble = block[-16 + i % 16] >> 4 if i >= 16 else block[-16 + i] & 15
        quant = int(nibble) + 16 * (high_bits >> i & 1)
        values.append(scale * quant + minimum if has_minimum else scale * (quant - 16))
    return values


def make_templates(gguf):
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    found = {"smollm2": tokenizer.chat_template} | texts.TEMPLATES
    cases = []
    for name, template in found.items():
        for conversation in texts.CONVERSATIONS:
            for generate in (True, False):
                try:
                    text = tokenizer.apply_chat_template(
                        conversation, chat_template=template, add_generation_prompt=generate, tokenize=False
                    )
                except Exception as error:  # the template's own refusal is a golden fact too
                    print(name, "refuses:", error)
                    text = None
                cases.append({"template": name, "messages": conversation, "generate": generate, "text": text})
    special = {n: v for n, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    content = {"templates": found, "special_tokens": special, "cases": cases}
    (HERE / "templates.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    for form in FORMS:
        make_form(form)
    make_quants()
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
        make_smollm2(path)
        make_tokenizer(path)
        make_templates(path)
