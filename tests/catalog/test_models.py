"""Finding a model by name, alias or path, and refusing what is not one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astra.catalog import models as catalog
from astra.catalog.models import model, model_names, models
from astra.errors import InputError, UnknownName, fold
from astra.files import load_toml
from astra.spec.model import ModelSpec

TOML = """
layers = 2
hidden = 64
ffn = 256
heads = 4
kv_heads = 2
head_dim = 16
vocab = 1000
max_seq = 512
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("spec", models(), ids=lambda spec: spec.name)
def test_every_model_is_named_after_its_file_and_says_where_it_comes_from(spec: ModelSpec) -> None:
    assert spec.name in model_names()
    assert spec.source not in ("", "given by the user")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", spec.date)
    for name in (spec.name, spec.name.upper(), spec.name.replace("-", "_"), f" {spec.name} ", *spec.aliases):
        assert model(name) is model(spec.name)


def test_no_two_models_answer_to_the_same_name() -> None:
    names = [fold(name) for spec in models() for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))
    assert len(models()) >= 70


def test_a_tuned_version_has_the_shape_of_its_base() -> None:
    assert model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert model("Qwen/Qwen2.5-7B-Instruct").name == "qwen2.5-7b"
    assert model("mixtral-8x7b-instruct").name == "mixtral-8x7b"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("qwen3-vl-235b", "qwen3-vl-235b-a22b"),
        ("Qwen3.5-397B", "qwen3.5-397b-a17b"),
        ("qwen3.5-397b-vl", "qwen3.5-397b-a17b-vl"),
        ("qwen3-next-80b", "qwen3-next-80b-a3b"),
        ("DeepSeek-V3.1-Terminus", "deepseek-v3"),
    ],
)
def test_a_part_of_a_name_that_one_model_has_is_enough(text: str, name: str) -> None:
    assert model(text).name == name


def test_a_file_wins_over_a_part_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model("qwen3-vl-235b").name == "qwen3-vl-235b-a22b"
    Path("qwen3-vl-235b").mkdir()
    Path("qwen3-vl-235b", "config.json").write_text(json.dumps(CONFIG))
    assert model("qwen3-vl-235b").layers == CONFIG["num_hidden_layers"]


def test_a_spec_is_taken_as_it_is() -> None:
    spec = model("gpt-2")
    assert model(spec) is spec


@pytest.mark.parametrize(
    ("text", "near"),
    [("llama-3-9b", "llama-3-8b"), ("llama-3", "llama-3-8b"), ("mixtral", "mixtral-8x7b"), ("gpt-oss", "gpt-oss-20b")],
)
def test_an_unknown_or_ambiguous_name_gets_suggestions(text: str, near: str) -> None:
    with pytest.raises(UnknownName) as caught:
        model(text)
    assert near in caught.value.nearest
    assert "config.json" in str(caught.value)


def test_only_the_file_asked_for_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def spy(raw: bytes) -> dict[str, Any]:
        parsed.append(raw)
        return load_toml(raw)

    monkeypatch.setattr(catalog, "load_toml", spy)
    catalog._load.cache_clear()
    model("mistralai/Mixtral-8x7B-v0.1")
    assert len(parsed) == 1
    assert b'name = "mixtral-8x7b"' in parsed[0]


def test_a_hugging_face_file_and_its_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert model(str(folder)) == model(str(folder / "config.json"))
    assert model(str(folder)).name == "mine"


def test_a_toml_file_is_read_and_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML + "[moe]\nexperts = 4\ntopk = 2\nffn = 128\n")
    spec = model(str(path))
    assert (spec.name, spec.layers, spec.source) == ("tiny", 2, "given by the user")
    assert spec.moe is not None
    assert spec.moe.topk == 2


def test_the_example_in_the_docs_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "my-model.toml").write_text(example)
    spec = model(str(tmp_path / "my-model.toml"))
    assert spec.moe is not None
    assert (spec.hidden, spec.moe.experts) == (4096, 64)


def test_a_known_name_wins_over_a_file_and_a_dot_over_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt-2", "my-model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(CONFIG))
    assert model("gpt-2").layers == 12
    assert model("./gpt-2").layers == 2
    assert model("my-model").layers == 2


def test_a_missing_file_is_named_and_a_near_model_offered() -> None:
    with pytest.raises(InputError, match=r"no-org/llama-3-8c.*Did you mean the catalog's.*llama-3-8b.*not fetched"):
        model("no-org/llama-3-8c")
    with pytest.raises(InputError, match=r"there is no absent\.toml"):
        model("absent.toml")


def _toml(line: str) -> bytes:
    """The small model with one key changed or added."""
    key = line.split(" = ", maxsplit=1)[0]
    kept = [old for old in TOML.splitlines() if old.split(" = ")[0] != key]
    return "\n".join([*kept, line, ""]).encode()


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "empty json": ("config.json", b"", "JSON"),
    "cut json": ("config.json", b'{"model_type": "llama"', "JSON"),
    "nan": ("config.json", b'{"model_type": "llama", "hidden_size": NaN}', "JSON"),
    "binary": ("config.json", bytes(range(256)), "binary"),
    "not utf-8": ("config.json", b'{"model_type": "\xff"}', "UTF-8"),
    "deep": ("config.json", b"[" * 100_000, "nested too deeply"),
    "a list": ("config.json", b"[]", "JSON object"),
    "a number": ("config.json", b"7", "JSON object"),
    "no type": ("config.json", b"{}", "model_type"),
    "huge": ("config.json", b" " * (8 * 1024 * 1024 + 1), "8 MiB"),
    "toml syntax": ("m.toml", b"layers = = 2", "TOML"),
    "toml not utf-8": ("m.toml", b"\xff\xfe", "UTF-8"),
    "toml deep": ("m.toml", b"a = " + b"[" * 100_000, "nested too deeply"),
    "missing key": ("m.toml", TOML.replace("ffn = 256\n", "").encode(), "ffn"),
    "unknown key": ("m.toml", _toml("hiden = 64"), "Did you mean hidden"),
    "unknown table key": ("m.toml", _toml("[moe]\nexperts = 4\ntopk = 2\nffn = 1\nexpert = 2"), "moe"),
    "text for a number": ("m.toml", _toml('hidden = "64"'), "hidden"),
    "true for a number": ("m.toml", _toml("hidden = true"), "hidden"),
    "a fraction": ("m.toml", _toml("hidden = 64.5"), "hidden"),
    "nan in toml": ("m.toml", _toml("hidden = nan"), "hidden"),
    "zero": ("m.toml", _toml("heads = 0"), "heads"),
    "negative": ("m.toml", _toml("vocab = -1"), "vocab"),
    "beyond sense": ("m.toml", _toml("hidden = 9000000000000000000"), "model"),
    "beyond 64 bits": ("m.toml", _toml(f"hidden = {10**40}"), "18 digits"),
    "beyond floats": ("m.toml", _toml(f"hidden = {10**400}"), "18 digits"),
    "kv heads": ("m.toml", _toml("kv_heads = 3"), "kv_heads"),
    "window without pattern": ("m.toml", _toml("window = 128"), "full_attention_every"),
    "pattern without window": ("m.toml", _toml("full_attention_every = 2"), "full_attention_every"),
    "no vocabulary": ("m.toml", _toml("vocab = 0"), "vocab"),
    "experts": ("m.toml", _toml("[moe]\nexperts = 4\ntopk = 5\nffn = 1"), "moe.topk"),
    "wrong word": ("m.toml", _toml('norm = "batchnorm"'), "norm"),
}


@pytest.mark.parametrize(("name", "content", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        model(str(path))
    assert name in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_folder_without_a_config_and_a_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        model(str(tmp_path))
    with pytest.raises(InputError, match="regular file"):
        model("/dev/null")


@pytest.mark.parametrize("text", ["x/" * 3000, "a" * 5000, "~nobody-of-that-name/x", "\ud800/x", "a\0b/c", ""])
def test_odd_text_is_refused_briefly(text: str) -> None:
    with pytest.raises(InputError) as caught:
        model(text)
    assert len(str(caught.value)) < 1000


@given(st.text(max_size=40))
def test_any_text_is_a_model_or_a_sentence(text: str) -> None:
    try:
        found: object = model(text)
    except InputError as error:
        found = str(error)
    assert found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=60), st.sampled_from(["m.toml", "config.json"]))
def test_any_bytes_are_a_model_or_a_sentence(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(TOML.encode() + content if name == "m.toml" else content)
    try:
        found: object = model(str(path))
    except InputError as error:
        found = str(error)
    assert found
