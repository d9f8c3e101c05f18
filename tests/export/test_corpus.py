"""What people run, read as it is meant: each public file right or refused with the reason, none silently wrong.

``python -m tests.export.test_corpus`` prints the tally.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from astra.errors import InputError
from astra.export.imported import ImportedLaunch
from astra.spec.strategy import Strategy
from tests.export.constructs import CONSTRUCTS
from tests.export.corpus import Entry
from tests.export.corpus_configs import CONFIGS
from tests.export.corpus_nasty import NASTY
from tests.export.corpus_scripts import SCRIPTS
from tests.export.launching import import_text

CORPUS = [*SCRIPTS, *CONFIGS]
RENAMED = {"batch": "global_batch"}
OF_MODEL = {"depth": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn": "ffn",
            "vocab_read": "vocab", "gated_mlp": "gated_mlp", "tied_embeddings": "tied_embeddings",
            "activation": "activation", "learned_positions": "learned_positions"}  # fmt: skip
OF_EXPERTS = {"experts": "experts", "topk": "topk"}


def fact(found: ImportedLaunch, name: str) -> Any:
    if name in OF_MODEL or name in OF_EXPERTS:
        assert found.model is not None, "the model was not understood"
        if name in OF_MODEL:
            return getattr(found.model, OF_MODEL[name])
        return None if found.model.moe is None else getattr(found.model.moe, OF_EXPERTS[name])
    if name in Strategy.__struct_fields__:
        return getattr(found.strategy, name)
    return getattr(found, RENAMED.get(name, name))


def read(entry: Entry) -> ImportedLaunch:
    return import_text(
        entry.text, name=entry.file, gpus=entry.gpus, parameters=entry.parameters, pick=entry.pick, vocab=entry.vocab
    )


def verdict(entry: Entry) -> str:
    """Right, refused with the reason, refused without need, or wrong in which fact."""
    try:
        found = read(entry)
    except InputError as refusal:
        if entry.refused and entry.refused in str(refusal):
            return "refused"
        return f"refused without need, or for another reason: {refusal}"
    if entry.refused:
        return "wrong: it should have been refused"
    for name, wanted in entry.facts.items():
        if name == "told":
            if wanted not in found.ignored:
                return f"wrong: {wanted} is not told, only {found.ignored}"
        elif fact(found, name) != wanted:
            return f"wrong: {name} is {fact(found, name)}, not {wanted}"
    return "right"


@pytest.mark.parametrize("entry", [*CORPUS, *CONSTRUCTS, *NASTY], ids=lambda entry: entry.source)
def test_right_or_refused(entry: Entry) -> None:
    assert verdict(entry) == ("refused" if entry.refused else "right")


def tally() -> Counter[str]:
    return Counter(verdict(entry).partition(":")[0] for entry in CORPUS)


def test_the_corpus_is_large_and_none_of_it_is_wrong() -> None:
    found = tally()
    assert len({entry.source.partition(" # ")[0] for entry in CORPUS}) >= 60
    assert len({entry.source for entry in CORPUS}) == len(CORPUS)
    assert found["wrong"] == 0
    assert found["right"] + found["refused"] >= 0.95 * len(CORPUS)
    assert found["refused"] < len(CORPUS) / 3


if __name__ == "__main__":
    counted = tally()
    files = {entry.source.partition(" # ")[0] for entry in CORPUS}
    print(
        f"{len(CORPUS)} entries of {len(files)} public files: "
        + ", ".join(f"{number} {word}" for word, number in counted.most_common())
    )
    for entry in CORPUS:
        if verdict(entry) not in ("right", "refused"):
            print(f"{entry.source}: {verdict(entry)}")
