"""What somebody runs today, for the verbs that cost it or compare with it: a script, a configuration or a plan file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from astra.cli import options
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.search.world import World


MOST_VOCAB: Final = 100_000_000


class FileChoice(NamedTuple):
    """What is said beside a file."""

    pick: str | None = None
    vocab: int | None = None
    parameters: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, words: bool = True) -> None:
    """The flags; with ``words`` also one for the parameters of a script."""
    text = "which of several: a job of a script, a function, a document, the rank of a plan"
    parser.add_argument("--pick", metavar="NAME", help=text)
    parser.add_argument("--vocab", metavar="N", type=options.whole("--vocab", at_most=MOST_VOCAB),
                        help="size of the vocabulary, where a script leaves it to its tokenizer")  # fmt: skip
    if words:
        parser.add_argument("--parameters", metavar="TEXT", help='parameters of the script, such as "7b 64"')


def choice_of(args: argparse.Namespace) -> FileChoice:
    """The flags, as they were given."""
    words = args.parameters
    if isinstance(words, str):
        import shlex  # noqa: PLC0415

        try:
            words = shlex.split(words)
        except ValueError:
            raise InputError("--parameters", args.parameters, want="words, quotes closed") from None
    return FileChoice(args.pick, args.vocab, tuple(words or ()))


def is_plan(file: str | None) -> bool:
    """Whether a file is an answer of ours."""
    if file is None or not file.lower().endswith(".json"):
        return False
    from astra.catalog.requests import is_answer  # noqa: PLC0415
    from astra.files import read_text  # noqa: PLC0415

    try:
        return is_answer(read_text(file, "plan"))
    except InputError:
        return False


def plan_strategy(file: str, choice: FileChoice) -> tuple[str, dict[str, Any], int]:
    """The strategy of a plan file, its record and the rank: the first plan unless another is picked."""
    from astra.export.reading import read_record, strategy_text  # noqa: PLC0415
    from astra.files import whole_number  # noqa: PLC0415

    record = read_record(file)
    rank = 1 if choice.pick is None else whole_number(choice.pick)
    if rank is None:
        raise InputError("--pick", choice.pick, want="the rank of a plan, such as 2")
    try:
        return strategy_text(record, rank, where=file), record, rank
    except InputError as error:
        where = "--pick" if error.where == "--rank" else error.where  # astra export calls it that
        raise InputError(where, error.got, want=error.want, fix=error.fix) from None


def take_request(args: argparse.Namespace, file: str, flag: str) -> None:
    """A plan file stands for the request it was made from, unless a model or a request is named."""
    if getattr(args, "model", None) is None:
        args.model = file
    elif flag == "--from":
        want = "either MODEL or the plan file, which says it"
        raise InputError("MODEL", args.model, want=want, fix=f"Leave out one of them: {flag} {file} has a request.")


class Planned(NamedTuple):
    """One plan of a file."""

    file: str
    record: dict[str, Any]
    world: World
    rank: int
    strategy: str
    step_s: float


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The PLAN.json argument and which plan of it."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan written by astra plan --out")
    parser.add_argument("--pick", metavar="N", help="which plan of the file (default 1, the best)")


def read(file: str, pick: str | None) -> Planned:
    """The plan of a rank; the file must be whole and consistent."""
    from astra.export.reading import figure, plan_of, world_of  # noqa: PLC0415

    text, record, rank = plan_strategy(file, FileChoice(pick=pick))
    plan, place = plan_of(record, rank, file)
    return Planned(file, record, world_of(record, file), rank, text, figure(plan, "step_s", place))
