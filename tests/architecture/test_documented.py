"""What is documented by hand must name everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from astra.answer import (
    Baseline,
    Cost,
    Estimate,
    Loss,
    ModelReport,
    Plan,
    PlanSet,
    PriceTag,
    Range,
    Reject,
    Restarts,
    Search,
    StageEstimate,
)
from astra.answer_money import (
    Afforded,
    AffordReport,
    BreakEven,
    Choice,
    ChoicePart,
    MixSearch,
    RentReport,
    RentSearch,
    Unused,
    Waste,
)
from astra.cli import parser
from astra.cli.catalog import CATALOG_SCHEMA, SECTIONS
from astra.cli.prices import PRICES_SCHEMA
from astra.lab.profile.summary import PROFILE_SCHEMA, ProfileSummary, Speed
from astra.lab.rehearse.compare import REHEARSAL_SCHEMA, Figures, Rehearsal, RehearsedStage
from astra.questions import records as questions
from astra.search.timeline import TIMELINE_SCHEMA, Lane, Moment, Span, StepTimeline
from astra.sharing import records as sharing
from astra.spec.fields import Field
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS
from astra.study import records as study
from astra.validate.replay import ReplayedRun
from astra.validate.score import Confusion, Pick, RunGroup, Validation

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "astra"
RECORDS = [PlanSet, Plan, Loss, Search, Reject, Estimate, StageEstimate, Range, ModelReport]
RECORDS += [Rehearsal, RehearsedStage, Figures, ProfileSummary, Speed]
RECORDS += [StepTimeline, Lane, Span, Moment]
RECORDS += [study.Explanation, study.Changed, study.Known, study.Comparison, study.Side, study.TermDifference]
RECORDS += [study.Sweep, study.SweepPoint]
RECORDS += [questions.StudyReport, questions.StudyPoint, questions.BestFleet, questions.StudyProblem]
RECORDS += [sharing.FleetReport, sharing.SharedJob, sharing.CurvePoint, sharing.PoolUse]
RECORDS += [Validation, ReplayedRun, Confusion, RunGroup, Pick]
RECORDS += [Baseline, Cost, PriceTag, Restarts, RentReport, Choice, ChoicePart, Waste, Unused, RentSearch, MixSearch]
RECORDS += [BreakEven, AffordReport, Afforded]


def documented(page: str, title: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    section = re.search(rf"^##+ [^\n]*{re.escape(title)}[^\n]*$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/json.md has no section on {title}"
    return {
        name
        for row in re.findall(r"^\| (`.*?) \|", section.group(1), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_documented(record: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert documented(page, f"`{record.__name__}`") == set(record.__struct_fields__)


def test_schemas_and_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for schema in (
        "astra.plan/1",
        "astra.estimate/1",
        "astra.model/1",
        "astra.error/1",
        "astra.rent/1",
        "astra.afford/1",
        TIMELINE_SCHEMA,
        study.EXPLANATION_SCHEMA,
        study.COMPARISON_SCHEMA,
        study.SWEEP_SCHEMA,
        questions.STUDY_SCHEMA,
        sharing.FLEET_SCHEMA,
        CATALOG_SCHEMA,
        PRICES_SCHEMA,
        REHEARSAL_SCHEMA,
        PROFILE_SCHEMA,
    ):
        assert f"`{schema}`" in page
    assert all(f"`{kind}`" in page for kind in SECTIONS)


def row(field: Field, name: str) -> str:
    """The line of docs/requests.md on a field."""
    help_ = field.help if isinstance(field.help, str) else "; ".join(dict.fromkeys(field.help.values()))
    words = field.help if name == "counts" else ()
    flag = " ".join(f"`--{word}`" for word in words) or ("" if field.flag is None else f"`{field.spelled}`")
    default = "" if field.default in (None, (), msgspec.NODEFAULT) or name == "money" else f"`{field.default}`".lower()
    cells = (f"`{name}`", flag, default, field.verbs.replace(" ", ", "), help_.replace("|", "\\|"))
    return "| " + " | ".join(cells) + " |"


def test_every_field_of_a_request_is_documented_as_it_is() -> None:
    page = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    rows = [row(field, name) for name, field in FIELDS.items()]
    rows += [row(field._replace(verbs=FIELDS["money"].verbs), f"money.{name}") for name, field in MONEY_FIELDS.items()]
    documented = [line for line in page.splitlines() if line.startswith("| `")]
    assert "\n".join(documented) == "\n".join(rows), "docs/requests.md has another table"


def test_every_verb_has_help_with_an_example() -> None:
    for name in parser.VERBS:
        verb = parser.module(name)
        assert f"astra {name}" in verb.EPILOG
        assert verb.HELP
        assert verb.DESCRIPTION


@pytest.mark.parametrize("package", ["search", "search/fleet"])
def test_the_head_of_the_search_names_its_modules(package: str) -> None:
    """A newcomer finds every module there, and none that is gone."""
    said = (SOURCE / package / "__init__.py").read_text(encoding="utf-8")
    modules = {path.stem for path in (SOURCE / package).glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"\w+", said))
    listed = {name for line in said.splitlines() for name in re.findall(r"^    ([\w, ]+?)  ", line)}
    assert {name for names in listed for name in names.split(", ")} <= modules


def test_modules_that_texts_speak_of_exist() -> None:
    """``cost/state.py`` and ``partition.solve``: in our own source and its data, from the package on."""
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    missing = []
    for path in sorted(path for path in SOURCE.rglob("*") if path.suffix in (".py", ".toml", ".rules")):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?<![\w/.-])([a-z_]+(?:/\w+)+\.py)\b(?!\.)", text)
        named += [f"{'/'.join(each.split('.'))}.py" for each in re.findall(r"``([a-z_]+\.[a-z_]+)``", text)]
        missing += [
            f"{path.relative_to(SOURCE)}: {each}"
            for each in named
            if each.partition("/")[0] in packages and not (SOURCE / each).exists() and not (SOURCE / each[:-3]).exists()
        ]
    assert missing == []
