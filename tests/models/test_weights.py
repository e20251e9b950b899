"""Reading checkpoints: values, names, placement, memory, and each way a checkpoint can be broken."""

import json
import pathlib
import shutil
import weakref

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

from lanpo_jax.models import gguf_format, published, qwen, weights

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
FORMS = ("qwen2", "qwen2_tied_yarn", "qwen3", "llama_tied", "llama_llama3")


def raw(form):
    """The tensors of a golden checkpoint, read without our code."""
    files = (GOLDEN / "models" / form).glob("*.safetensors")
    return {k: v for file in files for k, v in safetensors.numpy.load_file(file).items()}


def abstract(checkpoint, scan_layers=False):
    config = qwen.ModelConfig.from_hf(checkpoint.config, scan_layers=scan_layers)
    return qwen.abstract(config)[0]


@pytest.fixture
def copy(tmp_path):
    """A checkpoint directory to break."""

    def make(form):
        return shutil.copytree(GOLDEN / "models" / form, tmp_path / form)

    return make


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_tensor_arrives_and_goes_back(form, scan_layers):
    checkpoint = weights.open_checkpoint(GOLDEN / "models" / form)
    params = weights.load_params(checkpoint, abstract(checkpoint, scan_layers))
    expected = raw(form)
    places = weights.export_names(params)
    assert set(places) == set(expected)
    for name, place in places.items():
        np.testing.assert_array_equal(weights.export_tensor(params, place), expected[name], err_msg=name)
    q = params["layers"]["q"][1] if scan_layers else params["layers_1"]["q"]
    np.testing.assert_array_equal(q, expected["model.layers.1.self_attn.q_proj.weight"].T)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_leaves_get_the_sharding_and_dtype_asked_for(scan_layers):
    checkpoint = weights.open_checkpoint(GOLDEN / "models" / "qwen3")
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))

    def placed(path, struct):
        stacked = path[0].key == "layers"
        matrix = struct.ndim - stacked == 2
        spec = PartitionSpec(*(None,) * stacked, *(("fsdp", "tensor") if matrix else (None,)))
        return jax.ShapeDtypeStruct(struct.shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    tree = jax.tree.map_with_path(placed, abstract(checkpoint, scan_layers))
    params = weights.load_params(checkpoint, tree)
    for leaf, struct in zip(jax.tree.leaves(params), jax.tree.leaves(tree)):
        assert leaf.sharding == struct.sharding and leaf.dtype == jnp.bfloat16
    down = params["layers"]["down"][1] if scan_layers else params["layers_1"]["down"]
    expected = raw("qwen3")["model.layers.1.mlp.down_proj.weight"].T.astype(jnp.bfloat16)
    np.testing.assert_array_equal(down, expected)
    whole = params["layers"]["down"] if scan_layers else params["layers_1"]["down"]
    assert whole.addressable_shards[0].data.size * 4 == whole.size  # really divided


def test_one_tensor_at_a_time_is_in_host_memory():
    checkpoint = weights.open_checkpoint(GOLDEN / "models" / "qwen3")
    alive = []

    def read(name):
        assert all(reference() is None for reference in alive), f"an earlier tensor is still held while reading {name}"
        array = np.array(checkpoint.read(name))
        alive.append(weakref.ref(array))
        return array

    watched = published.Checkpoint(checkpoint.path, checkpoint.config, {}, checkpoint.shapes, read)
    weights.load_params(watched, abstract(checkpoint, scan_layers=True))
    assert len(alive) == len(checkpoint.shapes)


def test_generation_config_is_read(copy):
    folder = copy("qwen2")
    assert weights.open_checkpoint(folder).generation_config["eos_token_id"] == 2
    (folder / "generation_config.json").unlink()
    assert weights.open_checkpoint(folder).generation_config == {}


def test_a_stored_head_of_a_tied_model_must_repeat_the_embedding(copy):
    folder = copy("llama_tied")
    tensors = raw("llama_tied")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    checkpoint = weights.open_checkpoint(folder)
    assert "head" not in weights.load_params(checkpoint, abstract(checkpoint))
    tensors["lm_head.weight"][3, 5] += 1
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight that differs from .*tie_word_embeddings to false"):
        weights.load_params(weights.open_checkpoint(folder), abstract(checkpoint))


def test_model_and_checkpoint_must_fit(copy):
    checkpoint = weights.open_checkpoint(GOLDEN / "models" / "qwen2")
    tree = abstract(checkpoint)
    fewer = {k: v for k, v in tree.items() if k != "layers_1"}
    with pytest.raises(ValueError, match=r"12 tensors that the model has no place for: model.layers.1"):
        weights.load_params(checkpoint, fewer)
    with pytest.raises(ValueError, match=r"lacks 12 of the 39 tensors of the model: model.layers.2"):
        weights.load_params(checkpoint, tree | {"layers_2": tree["layers_1"]})
    wrong = tree | {"embed": jax.ShapeDtypeStruct((97, 32), jnp.float32)}
    with pytest.raises(
        ValueError, match=r"embed_tokens.weight .* shape \(96, 32\) but the model's embed is \(97, 32\)"
    ):
        weights.load_params(checkpoint, wrong)
    with pytest.raises(ValueError, match=r"'router' has no Hugging Face name"):
        weights.export_names(tree | {"layers_0": {"router": None}})


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


SHARD = "model-00002-of-00003.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
BROKEN = {
    "no config": (lambda d: (d / "config.json").unlink(), r"has no config.json; pass a complete"),
    "cut config": (lambda d: truncate(d / "config.json"), r"config.json is not valid JSON .*download it again"),
    "no shard": (lambda d: (d / SHARD).unlink(), rf"lacks 1 of the 3 files .*{SHARD}; finish the download"),
    "cut shard": (lambda d: truncate(d / SHARD), rf"{SHARD} is cut off or no safetensors file .*download it again"),
    "empty shard": (lambda d: (d / SHARD).write_bytes(b""), rf"{SHARD} is empty; download it again"),
    "pointer": (lambda d: (d / SHARD).write_text(POINTER), rf"{SHARD} is a git-lfs pointer.*git lfs pull"),
    "wrong shard": (
        lambda d: shutil.copy(d / "model-00001-of-00003.safetensors", d / SHARD),
        r"which the index places",
    ),
    "cut index": (lambda d: truncate(d / "model.safetensors.index.json"), r"index.json is not valid JSON"),
    "no index": (lambda d: (d / "model.safetensors.index.json").unlink(), r"neither model.safetensors nor .*finish"),
    "empty index": (lambda d: (d / "model.safetensors.index.json").write_text("{}"), r"no weight_map"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_directories(copy, case):
    folder = copy("qwen2")
    damage, message = BROKEN[case]
    damage(folder)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        weights.open_checkpoint(folder)


def test_unfinished_downloads_are_named(tmp_path):
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "abc.incomplete").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"no config.json \(1 unfinished downloads, e.g. abc.incomplete\)"):
        weights.open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"convert its torch files to safetensors"):
        weights.open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    with pytest.raises(ValueError, match=r"is quantised \(gptq\)"):
        weights.open_checkpoint(tmp_path)


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere; pass"):
        weights.open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"neither a Hugging Face directory nor a .gguf file"):
        weights.open_checkpoint(tmp_path / "a.txt")
    safetensors.numpy.save_file({"a": np.ones(3, np.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"is one file of a checkpoint; pass its folder"):
        weights.open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a in .* is stored as I32; known are"):
        weights.open_checkpoint(tmp_path)


# ---- GGUF


def write_gguf(path, form, theta=None, **extra):
    """Writes a golden checkpoint as llama.cpp's converter does, q and k rows of llama models permuted."""
    config = json.loads((GOLDEN / "models" / form / "config.json").read_text())
    architecture, tensors = config["model_type"], raw(form)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta or config["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    for key, value in extra.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    for name, value in tensors.items():
        stem, suffix = name.rsplit(".", 1)
        for heads, part in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
            if architecture == "llama" and stem.endswith(part):
                n = config[heads]
                halves = value.reshape(n, 2, value.shape[0] // n // 2, *value.shape[1:])
                value = halves.swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", np.ascontiguousarray(value))
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("form", ["qwen2", "qwen3", "llama_tied"])
def test_gguf_equals_the_directory_it_was_made_from(tmp_path, form):
    finish(write_gguf(tmp_path / "m.gguf", form))
    ours, theirs = weights.open_checkpoint(tmp_path / "m.gguf"), weights.open_checkpoint(GOLDEN / "models" / form)
    assert ours.shapes == theirs.shapes
    for name in theirs.shapes:
        np.testing.assert_array_equal(ours.read(name), theirs.read(name), err_msg=name)
    assert qwen.ModelConfig.from_hf(ours.config) == qwen.ModelConfig.from_hf(theirs.config)


def test_gguf_rope_scalings(tmp_path):
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    writer = write_gguf(tmp_path / "yarn.gguf", "qwen2_tied_yarn", **yarn)
    writer.add_rope_scaling_orig_ctx_len(16)
    finish(writer)
    theirs = json.loads((GOLDEN / "models" / "qwen2_tied_yarn" / "config.json").read_text())
    assert weights.open_checkpoint(tmp_path / "yarn.gguf").config["rope_scaling"] == theirs["rope_scaling"]
    finish(write_gguf(tmp_path / "other.gguf", "qwen2", **{"rope.scaling.type": "longrope"}))
    with pytest.raises(ValueError, match=r"scales RoPE by 'longrope'; known are"):
        weights.open_checkpoint(tmp_path / "other.gguf")


def test_gguf_llama3_scaling_is_recognised_by_its_table(tmp_path):
    """convert_hf_to_gguf.py leaves only divisors: 1 above high_freq, the factor below low_freq, a blend between."""
    frequencies = 5e5 ** -(np.arange(0, 8, 2) / 8)
    table = []
    for wavelength in 2 * np.pi / frequencies:
        blend = (8192 / wavelength - 1) / (4 - 1)
        inside = 1 / ((1 - blend) / 32 + blend)
        table.append(1.0 if wavelength < 8192 / 4 else 32.0 if wavelength > 8192 else inside)
    assert table[0] == 1 and 1 < table[2] < 32 and table[3] == 32
    writer = write_gguf(tmp_path / "m.gguf", "llama_tied", theta=5e5)
    writer.add_tensor("rope_freqs.weight", np.array(table, np.float32))
    finish(writer)
    checkpoint = weights.open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    weights.load_params(checkpoint, abstract(checkpoint))
    writer = write_gguf(tmp_path / "n.gguf", "llama_tied")
    writer.add_tensor("rope_freqs.weight", np.array([1, 2, 3, 4], np.float32))
    finish(writer)
    with pytest.raises(ValueError, match=r"a table that is not Llama 3's"):
        weights.open_checkpoint(tmp_path / "n.gguf")


def test_quantised_blocks_unpack_to_the_reference_values(tmp_path):
    golden = np.load(GOLDEN / "quants.npz")
    kinds = sorted({key.split("/")[0] for key in golden})
    writer = write_gguf(tmp_path / "m.gguf", "llama_tied")
    for kind in kinds:
        writer.add_tensor(kind, golden[f"{kind}/bytes"], raw_dtype=gguf.GGMLQuantizationType[kind])
    values = np.linspace(-3, 3, 256, dtype=np.float32).reshape(2, 128)
    writer.add_tensor("F16", values.astype(np.float16))
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    writer.add_tensor("BF16", bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    finish(writer)
    checkpoint = weights.open_checkpoint(tmp_path / "m.gguf")
    assert kinds == ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"]
    for kind in kinds:
        assert checkpoint.shapes[kind] == (2, 256)
        np.testing.assert_allclose(checkpoint.read(kind), golden[f"{kind}/values"], rtol=1e-6, atol=1e-7, err_msg=kind)
    np.testing.assert_array_equal(checkpoint.read("F16"), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(checkpoint.read("BF16"), (bits.astype(np.uint32) << 16).view(np.float32))
    assert all(checkpoint.read(kind).dtype == np.float32 for kind in checkpoint.shapes)


def test_broken_gguf_files(tmp_path):
    path = tmp_path / "m.gguf"
    finish(write_gguf(path, "qwen2"))
    whole = path.read_bytes()
    for content, message in [
        (whole[:-5000], r"m.gguf is cut off or no GGUF file"),
        (whole[:3000], r"m.gguf is cut off or no GGUF file"),
        (whole[:2], r"m.gguf is cut off or no GGUF file"),
        (b"nonsense" * 100, r"m.gguf is cut off or no GGUF file"),
        (b"", r"m.gguf is empty"),
        (POINTER.encode(), r"m.gguf is a git-lfs pointer"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            weights.open_checkpoint(path)


def test_gguf_of_an_unknown_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    finish(writer)
    with pytest.raises(ValueError, match=r"architecture 'gemma3'; known are llama, qwen2, qwen3"):
        weights.open_checkpoint(tmp_path / "m.gguf")


def test_float32_metadata_read_as_their_decimal():
    assert gguf_format.round_float(float(np.float32(1e-6))) == 1e-6
    assert gguf_format.round_float(1e6) == 1e6
