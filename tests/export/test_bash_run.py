"""Branches, loops and functions of scripts, against what bash itself runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from astra.errors import InputError
from astra.export.bash_run import ways
from tests.export.launching import import_text

JOB = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --num-layers 32"
# Each shows words; bash runs it with a function of that name.
DECIDED = [
    'A=1\nif [ "$A" = 1 ]; then show yes; else show no; fi',
    "A=2\nif [ $A -eq 1 ]; then show one; elif [ $A -lt 3 ]; then show two; else show more; fi",
    "if [ -z \"${UNSET_NAME}\" ]; then show empty; fi\nif [ -n \"$UNSET_NAME\" ]; then show full; fi",
    'A=x\nif [[ $A == x && 3 -gt 2 ]]; then\n  show both\nfi',
    'A=y\nif [[ $A == x || $A == y ]]; then show either; fi',
    'if [ ! "a" = "b" ]; then show not; fi',
    'A=7b\ncase $A in\n  13b) show big ;;\n  7b|8b)\n    B=3\n    show small $B\n    ;;\n  *) show other ;;\nesac',
    "case abc in a*) show begins;; *) show no;; esac",
    'for X in 1 2 3; do\n  show $X\ndone',
    'L="a b"\nfor X in $L; do for Y in c d; do show $X$Y; done; done',
    'f() {\n  show "f" "$1" "$#"\n}\nf one two\nf three',
    "function g { show g $1; }\ng 1",
    'if [ "$1" = train ]; then show "$2"; shift; show "$1"; fi',
    'show "$@"\nshow ${3:-none} ${1:-none}',
    'cat <<EOF > /dev/null\nif [ x\nshow not this\nEOF\nshow after',
    "cat <<'E' >/dev/null\nshow $(not this\nE\nshow after",
    'A=1\nif [ $A = 1 ]; then\n  if [ $A = 2 ]; then show inner; else show else; fi\n  show outer\nfi',
    'A="--x 1 \\\n   --y 2"\nshow $A',
    'export A=3 B=4\ndeclare -i C=5\nlocal_name=6\nshow $A $B $C $local_name',
    'bash -c "exit 0"\nN=4\neval show $((N*2))',
    'show one\nexit 0\nshow two',
    'f() { show in; return; show not; }\nf\nshow out',
    '[ 1 = 2 ] && show not\n[ 1 = 1 ] && show yes\n[ 1 = 2 ] || show or',
    'true || { show not\nexit 1\n}\nshow after',
    '[ 1 = 2 ] || { show group; show again; }',
    "IFS=',' read -r A B C <<< '4,1,True'\nshow $A $B $C",
    'read -r A B <<< "x y z"\nshow $A-$B',
    'A=(a b c)\nshow ${A[1]} ${#A[@]} ${A[$((1+1))]}',
    'F=/x/y/model.tar.gz\nshow ${F##*/} ${F%.gz} ${F#/} ${F%%.*}',
    'A=abcabc\nshow ${A/b/x} ${A//b/x} ${A:1:2} ${A:3}',
    'A=\nshow ${A:-none} ${A:+some} ${B:=set} $B',
    'T=4\nshow $(( ($T > 1) ? 1 : 0 )) $(( (T + 2) * 3 % 4 )) $((7/2)) $(( 2 - -3 ))',
    'i=0\nwhile [ $i -lt 3 ]; do show $i; i=$((i+1)); done',
    'set -- a b c\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    b) show found; shift ;;\n    *) shift ;;\n  esac\ndone',
    'bash <<EOF\nexit 0\nEOF\nshow after',
    'false\nX=$?\nY=0\nif [ $Y -ne 0 ]; then exit 1; fi\nshow on',
    'C="show a"\nC="$C b"\n$C',
    "Q='show \"a b\" c'\neval $Q",
]  # fmt: skip


@pytest.mark.parametrize("script", DECIDED)
def test_as_bash_runs_it(tmp_path: Path, script: str) -> None:
    prologue = 'show() { printf "%s\\n" "$*"; }\n'
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ran = subprocess.run(["bash", "-c", prologue + script, "name", "train", "b c"], capture_output=True, text=True,
                         check=False, env=env, timeout=300)  # fmt: skip
    found = [" ".join(words[1:]) for words in ways(script, ["train", "b c"])[0].commands if words[0] == "show"]
    assert found == ran.stdout.splitlines()


def test_text_given_to_a_shell() -> None:
    script = f"ARGS='--tensor-model-parallel-size 4'\nsrun -N 2 bash -c \"{JOB} $ARGS\""
    found = import_text(script, name="x.sh")
    assert (found.strategy.tp, found.gpus) == (4, 8)
    single = f"export TP=2\nsrun bash -lc '{JOB} --tensor-model-parallel-size $TP'"
    assert import_text(single, name="x.sh").strategy.tp == 2


def test_a_batch_job_says_how_many() -> None:
    script = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python pretrain_gpt.py --micro-batch-size 1"
    )
    assert import_text(script, name="x.sbatch").gpus == 32


def test_parameters_decide() -> None:
    script = f'if [ "$1" = big ]; then TP=8; else TP=2; fi\n{JOB} --tensor-model-parallel-size $TP'
    with pytest.raises(InputError, match=r'"\$1" = big|\$1 = big'):
        import_text(script, name="x.sh")
    assert import_text(script, name="x.sh", parameters=["big"]).strategy.tp == 8
    assert import_text(script, name="x.sh", parameters=["small"]).strategy.tp == 2


def test_a_branch_that_does_not_matter_is_passed_over() -> None:
    script = f'if [ -f latest.txt ]; then L="--load here"; else L=""; fi\n{JOB} $L'
    assert len(ways(script)) == 2
    assert import_text(script, name="x.sh").strategy.dp == 8


def test_several_jobs_are_named() -> None:
    script = f"for TP in 1 2 4; do {JOB} --tensor-model-parallel-size $TP; done"
    with pytest.raises(InputError, match="several"):
        import_text(script, name="x.sh")


def test_a_case_nobody_decides() -> None:
    script = f"case $MODEL in 7b) L=32;; 70b) L=80;; esac\n{JOB} --num-layers $L"
    with pytest.raises(InputError, match="MODEL"):
        import_text(script, name="x.sh")


@pytest.mark.parametrize("script", ["f() { f; }\nf", "while true; do show 1; done", "if " * 50, "case x in " * 20])
def test_scripts_that_do_not_end_do(script: str) -> None:
    found = ways(script)
    assert len(found) == 1
    assert len(found[0].commands) <= 1  # once round is enough to know what it runs
