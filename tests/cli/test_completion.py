"""Completion as real shells run it, and the manual as a real formatter reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from astra.cli import main, parser
from astra.cli.completion import bash, fish, man, names, verbs, zsh


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def run(*words: str, text: str = "") -> str:
    ended = subprocess.run(words, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def in_bash(*words: str) -> set[str]:
    """What bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    script = (
        f"{bash()}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _astra; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return set(run("bash", "--norc", text=script).split())


@needs("bash")
def test_bash_offers_verbs_flags_words_and_names() -> None:
    assert in_bash("astra", "") == {*parser.VERBS, "--help", "--version"}
    assert in_bash("astra", "pl") == {"plan"}
    for verb in parser.VERBS:
        assert set(parser.flags(verb)) <= in_bash("astra", verb, "-"), verb
    assert in_bash("astra", "plan", "--precision", "bf") == {"bf16"}
    assert in_bash("astra", "plan", "llama-2-7") == {"llama-2-7b", "llama-2-70b"}
    assert in_bash("astra", "plan", "--gpus", "512xH200-S") == {"512xH200-SXM5-141GB"}
    assert "megatron" in in_bash("astra", "export", "--to", "mega")
    assert in_bash("astra", "completion", "fi") == {"fish"}


@needs("bash")
def test_bash_offers_files_where_a_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan-of-mine.json").touch()
    assert in_bash("astra", "trace", "plan-of") == {"plan-of-mine.json"}
    assert in_bash("astra", "plan", "plan-of") == {"plan-of-mine.json"}
    assert in_bash("astra", "plan", "llama-2-7b", "--cluster", "plan-of") == {"plan-of-mine.json"}


@needs("fish")
def test_fish_offers_the_same() -> None:
    def offered(typed: str) -> set[str]:
        shown = run("fish", "--no-config", "-c", f"{fish()}\ncomplete -C '{typed}'")
        return {line.split("\t")[0] for line in shown.splitlines()}

    assert offered("astra ") == set(parser.VERBS)
    assert set(parser.flags("plan")) <= offered("astra plan --")
    assert offered("astra plan --precision bf") == {"bf16"}
    assert offered("astra plan --gpus 64xH200-S") == {"64xH200-SXM5-141GB"}
    assert {"llama-2-7b", "llama-2-70b"} <= offered("astra plan llama-2-7")


@needs("zsh")
def test_zsh_reads_it() -> None:
    run("zsh", "-f", "-n", text=zsh())
    loaded = run("zsh", "-f", text=f"autoload -Uz compinit; compinit -u -D\n{zsh()}\nprint $_comps[astra]")
    assert loaded.strip() == "_astra"


def test_zsh_has_every_flag_and_closes_every_bracket() -> None:
    text = zsh()
    for verb in verbs():
        block = re.search(rf"^        {verb.name}\)\n(.*?)^            ;;", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        for flag in parser.flags(verb.name):
            assert f"'*{flag}[" in block.group(1)


@needs("groff")
def test_the_manual_has_no_mistake_and_every_flag() -> None:
    shown = run("groff", "-man", "-ww", "-Tutf8", "-P-cbou", text=man())
    flat = re.sub("[\u2010\u2212]", "-", shown)
    for verb in parser.VERBS:
        assert f"ASTRA {verb.upper()}" in flat
    for flag in parser.flags("plan"):
        assert flag in flat
    assert "no feasible plan" in flat


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "man"])
def test_the_verb_prints_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "astra" in capsys.readouterr().out


def test_another_shell_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fsh"]) == 2
    assert "Did you mean fish" in capsys.readouterr().err


def test_every_name_can_stand_in_a_list_of_words() -> None:
    for kind, words in names().items():
        assert words, kind
        assert all(re.fullmatch(r"[\w.+-]+", word) for word in words), kind
