"""``astra prices``: SkyPilot catalogs and plain lists come in, faults are named, what is written can be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from astra.catalog.prices import read_prices
from tests.cli.conftest import Shown

Command = Callable[..., Shown]
SKY = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
SKY_ROWS = (
    "p5.48xlarge,H100,8,192,2048,x,55.04,20.0,us-east-1,us-east-1a\n"
    "p5.48xlarge,H100,8,192,2048,x,55.04,28.0,us-east-1,us-east-1b\n"
    "p5.48xlarge,H100,8,192,2048,x,60.0,,eu-west-1,eu-west-1a\n"
    "m5.large,,,2,8,,0.096,0.03,us-east-1,us-east-1a\n"
    "inf2.xlarge,Inferentia2,1,4,16,x,0.75,0.2,us-east-1,us-east-1a\n"
    ",A100,8,,,,23.0,9.0,us-central1,us-central1-a\n"
)


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_skypilot_catalog(astra_command: Command, tmp_path: Path) -> None:
    source, target = file(tmp_path, "aws.csv", SKY + SKY_ROWS), tmp_path / "mine.csv"
    shown = astra_command("prices", "import", str(source), "--date", "2026-11-01", "--to", str(target), "--json")
    record = shown.record
    assert (shown.code, record["form"]) == (0, "skypilot")
    assert record["left_out"] == {"unknown GPU Inferentia2": 1, "a GPU priced without its instance": 1}
    prices = {(p.region, p.market): p for p in read_prices(target)}
    assert set(prices) == {("us-east-1", "on-demand"), ("us-east-1", "spot"), ("eu-west-1", "on-demand")}
    east = prices["us-east-1", "on-demand"]
    assert (east.provider, east.gpu, east.gpus, east.date.isoformat()) == ("AWS", "H100-SXM5-80GB", 8, "2026-11-01")
    assert east.usd_per_gpu_h == pytest.approx(6.88), "the price of a file is of the whole instance"
    assert prices["us-east-1", "spot"].usd_per_gpu_h == pytest.approx(3.0), "the median of the zones"


def test_what_no_region_has_is_left_out_where_others_name_theirs(astra_command: Command, tmp_path: Path) -> None:
    """SkyPilot lists an instance without a region while its seller has none free anywhere."""
    row = "ECS{0}GPU10,H200,{0},32,256,,{1},,{2},\n"
    one, eight = row.format(1, 2.6, "it-fr2"), row.format(8, 20.8, "")
    source = file(tmp_path, "seeweb.csv", SKY + one + eight)
    record = astra_command("prices", "import", str(source), "--json").record
    assert record["left_out"] == {"an instance that no region has": 1}
    assert [price["gpus"] for price in record["entries"]] == [1]
    nowhere = astra_command("prices", "import", str(file(tmp_path, "acme.csv", SKY + eight)), "--json").record
    assert nowhere["left_out"] == {}, "a file without regions says nothing of them"


def test_a_catalog_folder_names_the_provider_and_google_prices_are_summed(
    astra_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "gcp").mkdir()
    rows = (
        "a3-highgpu-8g,,,208,1872,,9.4601,5.6759,us-central1,us-central1-a\n"
        ",H100,8,,,x,78.3724,47.0232,us-central1,us-central1-a\n"
        ",H100,8,,,x,78.3724,47.0232,us-central1,us-central1-b\n"  # no machine in that zone
        ",tpu-v4-8,1,,,x,3,1,us-central1,us-central1-a\n"
    )
    source, target = file(tmp_path / "gcp", "vms.csv", SKY + rows), tmp_path / "mine.csv"
    record = astra_command("prices", "import", str(source), "--to", str(target), "--json").record
    assert record["left_out"] == {"a GPU priced without its instance": 1, "unknown GPU tpu-v4-8": 1}
    found = {price.market: price for price in read_prices(target)}
    assert found["on-demand"].usd_per_gpu_h == pytest.approx((78.3724 + 9.4601) / 8)
    assert found["spot"].usd_per_gpu_h == pytest.approx((47.0232 + 5.6759) / 8)
    assert (found["spot"].provider, found["spot"].instance) == ("GCP", "a3-highgpu-8g")
    assert found["spot"].source == "SkyPilot catalog file gcp/vms.csv"


def test_boards_on_pcie_are_told_from_the_others(astra_command: Command, tmp_path: Path) -> None:
    rows = (
        "1x_A100-80GB_SECURE,A100-80GB,1,8,117,{'Name': 'A100 PCIe'},1.39,,IN,a\n"
        "1x_A100-80GB-SXM,A100-80GB-SXM,1,8,117,{'Name': 'A100 SXM'},1.49,,IN,a\n"
        "n3-H100-SXM5x8,H100-80G-SXM5,8,8,117,x,19.2,,IN,a\n"
        "n3-H100x8,H100-80G-PCIe,8,8,117,x,15.2,,IN,a\n"
    )
    source = file(tmp_path, "runpod.csv", SKY + rows)
    entries = astra_command("prices", "import", str(source), "--json").record["entries"]
    names = [entry["gpu"] for entry in entries]
    assert names == ["A100-PCIe-80GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H100-PCIe-80GB"]


def test_many_unknown_gpus_are_summed_up(astra_command: Command, tmp_path: Path) -> None:
    rows = "".join(f"i,tpu-v5p-{n},1,1,1,x,3,1,r,z\n" for n in range(50))
    shown = astra_command("prices", "import", str(file(tmp_path, "gcp.csv", SKY + rows)))
    assert shown.code == 2
    assert "42 other GPUs" in shown.err


def test_windows_files(astra_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xef\xbb\xbfgpu,usd_per_gpu_h\r\nH100,2.5\r\n\r\n")
    record = astra_command("prices", "import", str(path), "--json").record
    assert [entry["usd_per_gpu_h"] for entry in record["entries"]] == [2.5]


def test_a_plain_list_can_be_rented_from(astra_command: Command, tmp_path: Path) -> None:
    source = file(tmp_path, "mine.csv", "gpu,usd_per_gpu_h,provider\nH100,1.5,Attic\nA100-80,0.4,Attic\n")
    target = tmp_path / "prices.csv"
    assert astra_command("prices", "import", str(source), "--to", str(target)).code == 0
    found = read_prices(target)
    assert [(p.provider, p.gpu, p.gpus, p.market) for p in found] == [
        ("Attic", "H100-SXM5-80GB", 8, "on-demand"),
        ("Attic", "A100-SXM4-80GB", 8, "on-demand"),
    ]
    rent = ("rent", "qwen2.5-1.5b", "--tokens", "1B", "--batch", "48", "--seq", "2048", "--max-gpus", "8")
    record = astra_command(*rent, "--gpus", "H100,A100-80", "--prices", str(target), "--json").record
    assert {choice["cost"]["price"]["provider"] for choice in record["front"]} == {"Attic"}


def test_without_a_target_nothing_is_written(astra_command: Command, tmp_path: Path) -> None:
    source = file(tmp_path, "aws.csv", SKY + SKY_ROWS)
    shown = astra_command("prices", "import", str(source), "--width", "140")
    assert "Nothing was written" in shown.out
    assert "Left out: unknown GPU Inferentia2 (1 rows)." in shown.out
    assert [entry.name for entry in tmp_path.iterdir()] == ["aws.csv"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu,price\nH100,2\n", "line 1: .*usd_per_gpu_h missing; column price unknown"),
        ("InstanceType,AcceleratorName,Price\na,H100,2\n", "line 1: .*AcceleratorCount"),
        (SKY + "p5,H100,8,1,1,x,-3,,r,z\n", "line 2, column Price: got '-3'"),
        (SKY + "p5,H100,8,1,1,x,free,,r,z\n", "line 2, column Price"),
        (SKY + "p5,H100,eight,1,1,x,3,,r,z\n", "line 2, column AcceleratorCount"),
        (SKY + "p5,H100\n", "line 2: got 2, wanted 10 fields"),
        (SKY, "at least one price"),
        ("gpu,usd_per_gpu_h\nH100,-2\n", "line 2, column usd_per_gpu_h: got '-2'"),
        ("gpu,usd_per_gpu_h\nH100,\n", "line 2, column usd_per_gpu_h"),
        ("gpu,usd_per_gpu_h,currency\nH100,2,GBP\n", "line 2, column currency: got 'GBP'"),
        ("gpu,usd_per_gpu_h\nZ1,2\n", "line 2, column gpu: got 'Z1'"),
        ("", "line 1: .*empty"),
    ],
)
def test_faults_are_named(astra_command: Command, tmp_path: Path, text: str, says: str) -> None:
    import re

    path = file(tmp_path, "list.csv", text)
    shown = astra_command("prices", "import", str(path))
    assert (shown.code, shown.out) == (2, "")
    assert re.search(says, shown.err), shown.err
    assert str(path) in shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("prices",), "ACTION"),
        (("prices", "fetch"), "import"),
        (("prices", "import"), "FILE"),
        (("prices", "import", "/nowhere.csv"), "no such file"),
        (("prices", "import", "x.csv", "--date", "2026-13-01"), "--date"),
        (("prices", "import", "x.csv", "--date", "2999-01-01"), "after today"),
    ],
)
def test_wrong_command_lines(astra_command: Command, arguments: tuple[str, ...], says: str) -> None:
    shown = astra_command(*arguments)
    assert shown.code == 2
    assert says in shown.err


def test_check(astra_command: Command, tmp_path: Path) -> None:
    record = astra_command("prices", "check", "--json").record
    assert record["checked"] > 200
    assert len(record["entries"]) == record["stale"] > 0, "the stale ones are listed"
    header = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
    path = file(tmp_path, "p.csv", header + "Acme,box,H100,8,,spot,1,USD,2020-01-01,acme,\n")
    assert "1 are older than 90 days" in astra_command("prices", "check", str(path), "--width", "140").out
    path.write_text(header + "Acme,box,H100,8,,spot,0,USD,2020-01-01,acme,\n")
    assert "column usd_per_gpu_h" in astra_command("prices", "check", str(path)).err
