"""Files cut short, with other values, nested or growing without end: always an answer or one paragraph, and soon."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest

from astra.errors import AstraError
from tests.export.corpus import Entry
from tests.export.launching import import_text
from tests.export.test_corpus import CORPUS

MOST_S = 1.0  # of the processor: others may be running
VALUES = ("0", "-1", "1e400", "99999999999999999999", "true", "null", "[1, [2]]", "{a: {b: 1}}", '"', "'", "", "é",
          "\\",          "${x}", "$(rm -rf /)", "x" * 5000, "\x00", "16x", "nan", "{", "}", "(", "*")  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])[0-9]+(?![\w.])")


def mutated(entry: Entry, chance: random.Random) -> Iterator[str]:
    """The text cut, with a value replaced, a line lost, doubled or moved."""
    text = entry.text
    for _ in range(4):
        yield text[: chance.randrange(len(text))]
        yield text[chance.randrange(len(text)) :]
    places = list(NUMBER.finditer(text))
    for value in VALUES:
        if places:
            place = chance.choice(places)
            yield text[: place.start()] + value + text[place.end() :]
        at = chance.randrange(len(text))
        yield text[:at] + value + text[at:]
    lines = text.splitlines()
    for _ in range(3):
        at = chance.randrange(len(lines))
        yield "\n".join([*lines[:at], *lines[at + 1 :]])
        yield "\n".join([*lines[:at], lines[at], *lines[at:]])
        yield "\n".join(["  " + line if place > at else line for place, line in enumerate(lines)])


def soon(text: str, entry: Entry) -> None:
    start, refusal = time.process_time(), ""
    try:
        import_text(
            text, name=entry.file, gpus=entry.gpus, parameters=entry.parameters, pick=entry.pick, vocab=entry.vocab
        )
    except AstraError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert time.process_time() - start < MOST_S


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.source)
def test_a_changed_file_is_read_or_refused(entry: Entry) -> None:
    chance = random.Random(entry.source)
    for text in mutated(entry, chance):
        soon(text, entry)


SIZE = 30_000
BOMBS = {
    "nested.yaml": "a: " + "[" * SIZE,
    "blocks.yaml": "".join(f"{' ' * depth}a:\n" for depth in range(600)),
    "documents.yaml": "---\na: 1\n" * 2000,
    "keys.yaml": "parallelism: {dp: 99999999999999999}\ntokens: {micro_batch_size: 1}\n",
    "trainer.yaml": "model_name_or_path: m\nper_device_train_batch_size: 99999999999999999\nmax_length: 4\n",
    "neox.yml": '{"pipe_parallel_size": 100000000000, "model_parallel_size": 100000000000, "train_batch_size": 1}',
    "hetero.yaml": "system: {hetero: {hetero_process_meshes: [1,1,1,1,1], hetero_pipeline_layer_split: "
                   "[999999999999, 1]}}\nmodel: {num_layers: 4, micro_batch_size: 1}\n",
    "nemo.yaml": "trainer: {devices: 99999999999, num_nodes: 99999999}\nmodel: {tensor_model_parallel_size: 1, "
                 "num_layers: 999999999999, micro_batch_size: 1, hidden_size: 1, num_attention_heads: 1}\n",
    "nested.json": "[" * SIZE,
    "nested.py": "(" * 5000,
    "added.py": "def f():\n    config.parallelism.a = " + "1+" * 8000 + "1\n",
    "calls.py": "def f():\n    config = f()\n    config.parallelism.tensor_parallel_degree = 2\n",
    "many.py": "".join(
        f"def f{n}():\n    c = f{n + 1}()\n    c = f{n + 2}()\n    c.parallelism.a = 1\n" for n in range(400)
    ),
    "doubled.sh": "A=aaaa\n" + "A=$A$A\n" * 60 + "show $A",
    "eval.sh": "A='eval $A $A'\neval $A",
    "loops.sh": "for a in 1 2 3 4 5 6 7 8; do " * 12 + "show" + "; done" * 12,
    "ways.sh": "".join(f"if [ -f f{n} ]; then A{n}=1; fi\n" for n in range(40)) + "show",
    "braces.sh": "A=" + "${A:-" * 400 + "}" * 400,
    "sums.sh": "A=$((" + "(" * 90 + "1" + ")" * 90 + "))\nB=$((" + "9*" * 90 + "9))",
    "cut.sh": "A=" + "a" * 1900 + "\nB=${A##" + "*a" * 200 + "b}\nshow $B\n" * 3,
    "document.sh": "bash <<E\n" * 200 + "x\n" + "E\n" * 200,
    "while.sh": "i=0\nwhile [ $i -lt 1000000 ]; do i=$((i+1)); done",
    "said.sh": "f() { echo $(f) $(f); }\nA=$(f)\nshow $A",
    "joined.sh": "[[ a " + "&& b " * 5000 + "]]\n" + "[[ " * 5000,
    "functions.sh": "f() { g; g; }\ng() { f; f; }\nf",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_does_not_go_off(name: str) -> None:
    soon(BOMBS[name], Entry("", name, "", gpus=8))
