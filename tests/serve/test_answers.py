"""What the API answers: the records of the Python functions, their sentences, and nothing from a client's paths."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.cli import main
from astra.errors import AstraError
from astra.serve.answers import ANSWERS, answered
from astra.serve.asked import PATHS
from astra.serve.openapi import description
from astra.serve.pages import OPENED
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS

ASKED: dict[str, Any] = {"model": "llama-2-7b", "gpus": ["16xH100"], "batch": 64, "seq": 2048, "tokens": "10B"}
STRATEGY = "tp4 pp1 dp4 mbs1 sp zero1"
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "intermediate_size": 1408, "vocab_size": 32000,
}  # fmt: skip

WRONG = [
    b"", b"null", b"[]", b"3", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"a":' * 500, b"{}", b'{"request": 3}',
    b'{"request": {}, "verb": "rm"}', b'{"model": {"name": "x"}}',
]  # fmt: skip


def ask(kind: str, body: object) -> Any:
    found = answered(kind, json.dumps(body).encode())
    assert found.status == 200, found.content
    return json.loads(found.content)


def refusal(kind: str, body: object) -> dict[str, str]:
    found = answered(kind, json.dumps(body).encode())
    assert found.status == 422
    said: dict[str, str] = json.loads(found.content)
    assert set(said) == {"error", "where", "want", "fix"}
    return said


def timeless(record: Any) -> Any:
    """A record without the seconds that its search took."""
    return {**record, "search": {k: v for k, v in record["search"].items() if k not in ("seconds", "strategies_per_s")}}


def test_records_are_those_of_the_python_functions() -> None:
    asked = {name: value for name, value in ASKED.items() if name != "model"}
    assert timeless(ask("plan", ASKED)) == timeless(json.loads(astra.plan("llama-2-7b", **asked).to_json()))
    estimate = astra.estimate("llama-2-7b", **asked, strategy=STRATEGY)
    assert ask("estimate", {**ASKED, "strategy": STRATEGY}) == json.loads(estimate.to_json())
    rented: dict[str, Any] = {"model": "llama-2-7b", "gpus": "H100", "tokens": "10B", "max_gpus": 8, "mixes": "none"}
    assert timeless(ask("rent", rented)) == timeless(json.loads(astra.rent(**rented).to_json()))


@pytest.mark.parametrize(
    "wrong",
    [{"batch": -1}, {"gpus": ["16xH1000"]}, {"precision": "bf15"}, {"batsch": 3},
     {"gpus": []}, {"seq": "long"}, {"fix": ["tp=three"]}, {"runtime": "megatrn"}, {"objective": "cheap"}],
)  # fmt: skip
def test_sentences_are_those_of_the_python_functions(wrong: dict[str, Any]) -> None:
    asked = {**ASKED, **wrong}
    with pytest.raises(AstraError) as raised:
        astra.plan(**asked)
    assert refusal("plan", asked)["error"] == str(raised.value)


def test_a_model_nobody_knows_gets_the_nearest_and_what_may_be_sent_instead() -> None:
    said = refusal("plan", {**ASKED, "model": "lama-2-7b"})
    assert said["where"] == "model"
    assert "Did you mean llama-2-7b" in said["fix"]
    assert "/api/import" in said["fix"]


@pytest.mark.parametrize("kind", sorted(set(ANSWERS) - {"catalog"}))
@pytest.mark.parametrize("body", WRONG)
def test_whatever_is_sent_gets_a_sentence(kind: str, body: bytes) -> None:
    found = answered(kind, body)
    assert found.status == 422
    assert json.loads(found.content)["error"].endswith((".", "?"))


def test_no_path_of_a_client_reaches_the_disk(tmp_path: Path) -> None:
    """Files that the command line would read, by every field that takes one; nothing below the folder is opened."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "cluster.toml").write_text('[[pool]]\ngpu = "H100"\ncount = 8\n', encoding="utf-8")
    (tmp_path / "rules.txt").write_text("refuse tp > 4\n", encoding="utf-8")
    (tmp_path / "prices.csv").write_text("provider\n", encoding="utf-8")
    touched: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir") and str(tmp_path) in str(arguments[0]):
            touched.append(str(arguments[0]))

    sys.addaudithook(watch)
    model, folder = str(tmp_path / "config.json"), str(tmp_path)
    tries: list[dict[str, Any]] = [
        {"model": model}, {"model": folder}, {"cluster": str(tmp_path / "cluster.toml"), "gpus": []},
        {"rules": str(tmp_path / "rules.txt")}, {"money": {"prices": str(tmp_path / "prices.csv")}},
        {"gpus": [f"8x{model}"]}, {"gpus": [f"8xH100@{model}"]}, {"node": model}, {"runtime": model},
        {"baseline": model}, {"objective": model}, {"fix": [f"tp={model}"]},
    ]  # fmt: skip
    try:
        for wrong in tries:
            refusal("plan", {**ASKED, **wrong})
            refusal("view", {"verb": "plan", "request": {**ASKED, **wrong}})
        for text in (str(tmp_path / "cluster.toml"), "64xH100 + cluster.toml", "1.toml", "1.TOML", model):
            for own in (text, [text], ["8xH100", text]):
                refusal("rent", {"model": "llama-2-7b", "gpus": "H100", "tokens": "1B", "max_gpus": 8, "own": own})
        refusal("export", {"request": ASKED, "target": model})
        refusal("trace", {**ASKED, "strategy": model})
        ask("import", {"text": json.dumps(CONFIG), "name": model})
        assert touched == []
        with pytest.raises(AstraError):
            astra.plan("llama-2-7b", cluster=str(tmp_path / "no.toml"), batch=8)
        assert astra.describe_model(model).shape["layers"] == 8
        assert touched != [], "the watch would have noticed"
    finally:
        watching = False


def test_every_field_that_may_name_a_file_is_known() -> None:
    """A new one must be refused in ``astra.serve.asked`` and tried above."""
    money = {f"money.{name}": field for name, field in MONEY_FIELDS.items()}
    named = {name for name, field in {**FIELDS, **money}.items() if "FILE" in field.kind.metavar}
    assert named == set(PATHS)


def test_exported_files_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "plan llama-2-7b --gpus 16xH100 --batch 64 --seq 2048 --tokens 10B --out plan.json -q"
    assert main(plan.split()) == 0
    assert main(["export", "plan.json", "--to", "megatron", "--out", "run"]) == 0
    found = answered("export", json.dumps({"request": ASKED, "target": "megatron"}).encode())
    assert found.name == "llama-2-7b-megatron.zip"
    packed = zipfile.ZipFile(io.BytesIO(found.content))
    files = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "run").iterdir()}
    assert {name: packed.read(name).decode() for name in packed.namelist()} == files


def test_a_dropped_config_is_planned_as_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    dropped = ask("import", {"text": json.dumps(CONFIG), "name": "config.json"})
    there = {name: value for name, value in ASKED.items() if name != "model"}
    sent = ask("plan", {**ASKED, "model": dropped["model"]})
    read = json.loads(astra.plan(str(tmp_path / "config.json"), **there).to_json())
    assert [plan["strategy"] for plan in sent["plans"]] == [plan["strategy"] for plan in read["plans"]]
    assert sent["plans"][0]["estimate"]["step_s"] == read["plans"][0]["estimate"]["step_s"]


def test_names_are_never_markup() -> None:
    """A model of one's own may be called anything; on the page it is a name."""
    dropped = ask("import", {"text": json.dumps(CONFIG), "name": "config.json"})["model"]
    asked = {**ASKED, "model": {**dropped, "name": "<img src=x onerror=alert(1)>"}}
    tried = {**asked, "strategy": STRATEGY}
    both = {"first": tried, "second": {**asked, "strategy": "tp2 pp1 dp8 mbs1 sp zero1"}}
    for verb, request in (("plan", asked), ("estimate", tried), ("compare", both)):
        body = {"verb": verb, "request": request}
        shown = answered("view", json.dumps(body).encode())
        assert shown.status == 200
        assert b"&lt;img" in shown.content
        assert b"<img" not in shown.content


def test_every_point_of_the_front_leads_to_its_choice() -> None:
    rented = {"model": "llama-2-7b", "gpus": "H100,A100-80", "tokens": "10B", "max_gpus": 64, "mixes": "none"}
    front = ask("rent", rented)["front"]
    shown = answered("view", json.dumps({"verb": "rent", "request": rented}).encode()).content.decode()
    links = re.findall(r'<a href="#(choice-\d+)" aria-label="([^"]+)"', shown)
    assert len(links) == len(front) > 1
    for (key, said), choice in zip(links, front, strict=True):
        card = re.search(rf'<h3 id="{key}-title">([^<]+) ', shown)
        assert card is not None
        assert card.group(1) == choice["name"]
        assert said.startswith(choice["name"])


def test_plans_that_leave_gpus_out_are_compared_on_those_they_use() -> None:
    cheapest = ask("plan", {**ASKED, "gpus": ["64xH100"], "objective": "cheapest"})["plans"][0]["estimate"]
    side = {**ASKED, "gpus": ["64xH100"]}
    whole = ask("plan", side)["plans"][0]["estimate"]
    assert cheapest["gpus"] != whole["gpus"]
    body = {"first": {**side, "strategy": cheapest["strategy"]}, "second": {**side, "strategy": whole["strategy"]}}
    found = ask("compare", body)
    assert found["first"]["estimate"]["step_s"] == pytest.approx(cheapest["step_s"])
    assert found["second"]["estimate"]["step_s"] == pytest.approx(whole["step_s"])
    svg = answered("trace", json.dumps(body["first"]).encode())
    assert svg.status == 200


def test_the_description_has_every_field_of_every_verb() -> None:
    schemas = description()["components"]["schemas"]
    for verb in ("plan", "estimate", "rent"):
        named = set(schemas[f"Ask{verb.title()}"]["properties"])
        assert named == {name for name, field in FIELDS.items() if field.on(verb)}
    for path, item in description()["paths"].items():
        for example in item.get("post", {}).get("requestBody", {}).get("content", {}).values():
            for one in example["examples"].values():
                assert answered(path.removeprefix("/api/"), json.dumps(one["value"]).encode()).status == 200


def test_studies_are_those_of_the_command_line() -> None:
    bought = ask("afford", {"model": "llama-3.2-1b", "budget": "20", "gpus": "H100", "max_gpus": 8})
    assert bought == json.loads(astra.afford("llama-3.2-1b", budget="20", gpus="H100", max_gpus=8).to_json())
    swept = ask("sweep", {"request": ASKED, "over": ["batch=32,64", "precision=bf16,fp8"]})
    assert [point["at"] for point in swept["points"]][:2] == [
        {"batch": "32", "precision": "bf16"}, {"batch": "64", "precision": "bf16"},
    ]  # fmt: skip
    best = ask("plan", {**ASKED, "batch": 64})["plans"][0]["estimate"]
    assert swept["points"][1]["step_s"] == best["step_s"]
    why = ask("explain", {"request": ASKED, "pick": 2})
    assert (why["rank"], why["next"] is None) == (2, False)
    assert why["changes"]
    assert refusal("afford", {"model": "llama-2-7b"})["where"] == "budget"
    assert refusal("afford", {"budget": 5, "tokens": "1B"})["where"] == "tokens"
    assert refusal("sweep", {"request": ASKED, "over": ["gpus=1..1000000", "batch=1,2"]})["where"] == "over"
    assert refusal("sweep", {"request": ASKED, "over": 3})["where"] == "over"
    assert refusal("explain", {"request": ASKED, "pick": 99})["where"] == "pick"


@pytest.mark.parametrize("verb", ["afford", "sweep", "explain"])
def test_views_of_studies_are_whole(verb: str) -> None:
    requests: dict[str, Any] = {
        "afford": {"model": "llama-3.2-1b", "budget": "20", "gpus": "H100", "max_gpus": 8},
        "sweep": {"request": ASKED, "over": ["batch=32,64"]},
        "explain": {"request": ASKED},
    }
    found = answered("view", json.dumps({"verb": verb, "request": requests[verb]}).encode())
    assert found.status == 200
    text = found.content.decode()
    assert "<script" not in text
    for name in ("table", "h2", "ul", "svg"):
        assert text.count(f"<{name}") == text.count(f"</{name}>")


def test_what_the_page_opens_with_is_there_before_it_is_asked() -> None:
    """The request of ``warm_up`` is the one that the controls of the page make up."""
    page = (Path(astra.__file__).parent / "serve" / "static" / "index.html").read_text(encoding="utf-8")
    for name in ("model", "batch", "seq", "tokens"):
        control = re.search(rf'<input id="{name}"[^>]*value="([^"]*)"', page)
        assert control is not None
        assert OPENED[name] == control.group(1)
