"""What a study declares: every combination once, in order; what is wrong is told at once, with the nearest name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astra.cli import main
from astra.errors import InputError
from astra.questions.declared import code_hash, key_of, read_study
from tests.questions.studies import TABLES, asked, study

FLEETS = ["8xH100"]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key": ({"modles": ["llama-2-7b"]}, "Did you mean models"),
    "a model": ({"models": ["llama-2-7c"]}, "models.llama-2-7c: model: got 'llama-2-7c'"),
    "a GPU": ({"fleets": ["8xH10"]}, "Did you mean H100"),
    "a field": ({"workloads": {"a": {"bach": 3}}}, "workloads.a.bach: wanted a field of astra plan. Did you mean bat"),
    "a value": ({"workloads": {"a": {"batch": -3}}}, "workloads.a.batch"),
    "a market": ({"prices": ["spt"]}, "prices.spt: got 'spt'"),
    "a price": ({"prices": [{"markt": "spot"}]}, "Did you mean market"),
    "an objective": ({"goals": ["cheap"]}, "Did you mean cheapest"),
    "a goal without its number": ({"goals": ["budget"]}, "goals.budget"),
    "a field of all": ({"request": {"tokenz": 3}}, "request.tokenz: wanted a field of astra plan. Did you mean token"),
    "no list": ({"models": "llama-2-7b"}, "models: got 'llama-2-7b'"),
    "an empty list": ({"models": []}, "models: got []"),
    "a number": ({"fleets": [8]}, "fleets.8"),
    "a text": ({"workloads": ["x"]}, "a table of fields"),
    "two of a name": ({"fleets": ["8xH100", "8xH100"]}, "a name for each setting"),
    "no GPUs": ({"fleets": None}, "fleets: wanted the fleets to plan"),
    "a field of two axes": ({"goals": [{"batch": 8}]}, "workloads and goals both say it"),
    "a restriction of all": ({"request": {"fix": ["tpp=8"]}}, "request: --fix: got 'tpp'"),
    "a runtime of all": ({"request": {"runtime": "megatrn"}}, "Did you mean megatron"),
    "a node of other GPUs": ({"fleets": ["8xA100-80"], "request": {"node": "dgx-h100"}}, "fleets.8xA100-80: node"),
    "a node of several pools": ({"request": {"node": "dgx-h100"}}, "64xH100@node for each pool"),
    "a runtime": ({"models": [{"model": "llama-2-7b", "runtime": "megatrn"}]}, "Did you mean megatron"),
    "a hidden name": ({"workloads": {"a\u202eb": {"batch": 8}}}, "workloads"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(case: str) -> None:
    changed, told = WRONG[case]
    with pytest.raises(InputError) as caught:
        study(**changed) if None not in changed.values() else _without(changed)
    assert told in str(caught.value)
    assert str(caught.value).startswith("s.toml: ")


def _without(changed: dict[str, Any]) -> None:
    from astra.questions.declared import study_of

    study_of({key: value for key, value in TABLES.items() if key not in changed}, "s.toml", Path())


def test_a_wrong_file_is_told_within_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text('models = ["llama-2-7b"]\nfleets = ["8xH100"]\n[workload]\nx = { batch = 8 }\n')
    began_s = time.process_time()
    assert main(["study", str(path)]) == 2
    assert time.process_time() - began_s < 1.0
    assert "Did you mean workloads" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path], "nothing is made for a study that cannot be asked"


def test_every_combination_is_a_question_of_its_own() -> None:
    found = asked(study())
    assert len(found) == 2 * 2 * 2 * 1 * 2
    assert [question.number for question in found] == list(range(16))
    assert len({tuple(question.at.items()) for question in found}) == 16
    assert len({question.key for question in found}) == 16
    first, last = found[0].request, found[-1].request
    assert (first.model, first.gpus, first.batch, first.money.market) == ("llama-2-7b", ("8xH100",), 64, "on-demand")
    assert (last.model, last.gpus, last.batch) == ("llama-3-8b", ("8xH100", "8xA100-80"), 8)
    assert (last.money.market, last.tokens, last.top) == ("spot", 10e9, 2)


def test_a_node_of_all_is_that_of_the_fleets_which_name_none(tmp_path: Path) -> None:
    """Unless they are a file, or what is shared names GPUs of its own."""
    (tmp_path / "mine.toml").write_text('[[pool]]\ncount = 8\ngpu = "H100-SXM5-80GB"\nnode = "dgx-h100"\n')
    other = "coreweave-hgx-h100"
    fleets = ["8xH100", {"gpus": "16xH100", "node": other}, str(tmp_path / "mine.toml")]
    shared = {"node": "runpod-pod-h100", "tokens": "1B"}
    few = {"models": ["llama-2-7b"], "workloads": [{"batch": 64}], "prices": ["spot"]}
    nodes = [question.request.node for question in asked(study(**few, fleets=fleets, request=shared))]
    assert nodes == ["runpod-pod-h100", other, None]
    theirs = asked(study(**few, fleets=fleets[:2], request={**shared, "gpus": "4xA100-80", "node": "dgx-a100"}))
    assert [question.request.node for question in theirs] == [None, other]


def test_keys_do_not_depend_on_names_or_order() -> None:
    before = {question.key for question in asked(study())}
    turned = study(title="x", models=list(reversed(TABLES["models"])), prices={"b": {"market": "spot"}, "a": {}})
    assert {question.key for question in asked(turned)} == before
    more = study(models=[*TABLES["models"], "llama-2-13b"])
    assert before < {question.key for question in asked(more)}


def test_a_key_tells_requests_and_files_of_prices_apart(tmp_path: Path) -> None:
    request = asked(study())[0].request
    assert key_of(msgspec.structs.replace(request, top=3)) != key_of(request)
    keys = set()
    for text in ("a", "b"):
        path = tmp_path / f"{text}.csv"
        path.write_text(text)
        money = msgspec.structs.replace(request.money, prices=str(path))
        keys.add(key_of(msgspec.structs.replace(request, money=money)))
    assert len(keys) == 2


def test_files_are_found_from_the_study_and_read_once(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(
        '[[pool]]\nname = "a"\ncount = 16\ngpu = "H100"\n', encoding="utf-8"
    )  # fmt: skip
    (tmp_path / "rules.txt").write_text("refuse tp > 4\n")
    path = tmp_path / "s.toml"
    path.write_text('models = ["llama-2-7b"]\nfleets = ["cluster.toml"]\n[request]\nrules = "rules.txt"\n')
    request = asked(read_study(str(path)))[0].request
    (tmp_path / "cluster.toml").unlink()
    (tmp_path / "rules.txt").unlink()
    assert request.cluster is not None
    assert not isinstance(request.cluster, str)
    assert request.cluster.pools[0].gpus == 16
    assert request.rules is not None
    assert "refuse tp > 4" in request.rules


def test_a_named_runtime_wants_plans_for_it_as_on_the_command_line() -> None:
    found = asked(study(models=[{"model": "llama-2-7b", "runtime": "torchtitan"}, "llama-3-8b"]))
    assert {question.request.launchable for question in found if question.at["models"] != "llama-3-8b"} == {True}
    assert {question.request.launchable for question in found if question.at["models"] == "llama-3-8b"} == {False}


def test_answers_of_other_code_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "cost").mkdir()
    module = tmp_path / "cost" / "step.py"
    module.write_bytes(b"seconds = 1\n")
    before = code_hash(tmp_path)
    module.write_bytes(b"seconds = 1\r\n")  # another checkout
    assert code_hash(tmp_path) == before
    module.write_bytes(b"seconds = 2\n")
    assert code_hash(tmp_path) != before
    module.write_bytes(b"seconds = 1\n")
    module.rename(tmp_path / "step.py")
    assert code_hash(tmp_path) != before
