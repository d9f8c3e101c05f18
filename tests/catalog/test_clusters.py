"""``512xH100`` and cluster files: what they mean, and that any fault is an InputError that names its place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astra.catalog import clusters, hardware
from astra.errors import InputError, UnknownName
from astra.spec.cluster import Device

POOL = '[[pool]]\ngpu = "H100"\ncount = 16\n'


@pytest.mark.parametrize("text", ["512xH100", " 512 x h100 ", "512×H100", "512*H100-SXM5-80GB", "0512XH100"])  # noqa: RUF001
def test_a_count_and_a_gpu(text: str) -> None:
    pool = clusters.parse_gpus(text)
    assert (pool.gpus, pool.device.name, pool.node.name) == (512, "H100-SXM5-80GB", "dgx-h100")


def test_a_node_type_in_the_text_or_apart() -> None:
    inside = clusters.parse_gpus("16 x H100 @ aws-p5.48xlarge")
    assert inside.node.name == "aws-p5.48xlarge"
    assert clusters.parse_gpus("16xH100", node="p5") == inside
    assert clusters.parse_gpus("16xH100@p5", node="p5.48xlarge") == inside
    with pytest.raises(InputError, match="names another"):
        clusters.parse_gpus("16xH100@p5", node="dgx-h100")


@given(st.integers(1, 1_000_000), st.sampled_from(hardware.devices()))
def test_every_gpu_and_whole_nodes(nodes: int, gpu: Device) -> None:
    per_node = hardware.default_node(gpu).gpus
    pool = clusters.parse_gpus(f"{nodes * per_node}x{gpu.name}")
    assert (pool.device, pool.gpus) == (gpu, nodes * per_node)


@pytest.mark.parametrize("count", ["0", "-8", "8.5", "nan", "inf", "1e3", "9" * 5000])
def test_the_count_is_a_whole_number(count: str) -> None:
    with pytest.raises(InputError, match="a whole number of GPUs between 1 and 10,000,000"):
        clusters.parse_gpus(f"{count}xH100")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("H100", "8xH100"),
        ("RTX4090", "8xRTX4090"),
        ("V100", "8xV100"),
        ("H100@p5", "8xH100@p5"),
        ("H100x512", "Write 512xH100"),
        ("MI300Xx8", "Write 8xMI300X"),
        ("H100:8", "Write 8xH100"),
    ],
)
def test_other_orders_are_refused_with_the_right_one(text: str, fix: str) -> None:
    with pytest.raises(InputError, match="such as 512xH100") as caught:
        clusters.parse_gpus(text)
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", " ", "8", "8x", "x", "8xH100@", "8x@p5", "8xH100@p5@p5", "٨xH100", None, 8, b"8xH100"]
)
def test_wrong_forms_say_what_is_wanted(text: str) -> None:
    with pytest.raises(InputError, match="such as 512xH100"):
        clusters.parse_gpus(text)


def test_part_of_a_node_is_refused_with_the_nearest_counts() -> None:
    with pytest.raises(InputError, match="Try 8x or 16x"):
        clusters.parse_gpus("12xH100")
    assert clusters.parse_gpus("4xH100").gpus_per_node == 4


def test_a_node_of_another_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"aws-p4d\.24xlarge holds A100-SXM4-40GB"):
        clusters.parse_gpus("8xH100@p4d")


def test_several_pools_in_one_text() -> None:
    cluster = clusters.parse_cluster("64xH100 + 32xA100,8xH100")
    assert [(pool.name, pool.gpus) for pool in cluster.pools] == [
        ("H100-SXM5-80GB", 64),
        ("A100-SXM4-80GB", 32),
        ("H100-SXM5-80GB #2", 8),
    ]
    with pytest.raises(InputError, match="such as 512xH100"):
        clusters.parse_cluster("64xH100++8xA100")
    with pytest.raises(InputError, match="such as 512xH100"):
        clusters.parse_cluster(64)  # type: ignore[arg-type]


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{0,9}[xX]?[A-Z0-9@ .x-]{0,20}", fullmatch=True))
def test_any_text_is_pools_or_an_input_error(text: str) -> None:
    with suppress(InputError):
        assert clusters.parse_cluster(text).gpus >= 1


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_of_catalog_pools(tmp_path: Path) -> None:
    text = (
        '[[pool]]\nname = "fast"\ngpu = "H100"\ncount = 64\nusd_per_gpu_h = 2.5\n'
        '[[pool]]\nnode = "p4d"\ncount = 16\n'
        '[between]\nkind = "tcp"\nbytes_per_s = 1e9\nlatency_s = 1e-4\noversubscription = 4\n'
    )
    cluster = clusters.read_cluster(written(tmp_path, text))
    fast, slow = cluster.pools
    assert (fast.name, fast.node.name, fast.gpus, fast.usd_per_gpu_h) == ("fast", "dgx-h100", 64, 2.5)
    assert fast.price_source == "user file mine.toml"
    assert (slow.name, slow.node.name, slow.usd_per_gpu_h) == ("A100-SXM4-40GB", "aws-p4d.24xlarge", None)
    assert cluster.between is not None
    assert (cluster.between.oversubscription, cluster.between.reach) == (4.0, hardware.ANY_REACH)


OWN = """
[[gpu]]
name = "H100-500W"
like = "H100"
power_w = 500
date = 2026-10-01

[[node]]
name = "box"
like = "dgx-h100"
gpu = "h100 500w"

[[node.links]]
reach = 8
kind = "nvswitch"
bytes_per_s = 450e9
latency_s = 5e-6

[[node.links]]
reach = "any"
kind = "roce"
bytes_per_s = 25e9
latency_s = 2e-5
oversubscription = 2

[[pool]]
gpu = "H100-500W"
count = 32
"""


def test_own_gpus_and_nodes_vary_known_ones(tmp_path: Path) -> None:
    (pool,) = clusters.read_cluster(written(tmp_path, OWN)).pools
    known = hardware.device("H100")
    assert (pool.device.power_w, pool.device.memory_bytes) == (500, known.memory_bytes)
    assert pool.device.relative == known.name  # it borrows what was measured on the GPU it is like
    assert (pool.device.date, pool.device.aliases) == ("2026-10-01", ())
    assert "mine.toml" in pool.device.source
    assert pool.node.name == "box"  # the only node type that holds it
    assert [link.reach for link in pool.node.links] == [8, hardware.ANY_REACH]
    assert pool.node.links[1].oversubscription == 2


def test_a_node_may_be_the_default_for_a_catalog_gpu(tmp_path: Path) -> None:
    text = '[[node]]\nname = "{0}"\nlike = "dgx-h100"\n'
    two = text.format("left") + text.format("right") + 'default_for = ["H100"]\n' + POOL
    assert clusters.read_cluster(written(tmp_path, two)).pools[0].node.name == "right"


GPU = '[[gpu]]\nname = "x1"\nlike = "H100"\n'
NODE = '[[node]]\nname = "n1"\nlike = "dgx-h100"\n'
NEAR = 'reach = 8, kind = "nvswitch", bytes_per_s = 4e11, latency_s = 5e-6'
NEARER = 'reach = 4, kind = "pcie", bytes_per_s = 1e10, latency_s = 1e-5'
FAULTS: dict[str, tuple[str | bytes, str, str]] = {
    "unknown key of the file": ("colour = 1\n" + POOL, "mine.toml", "colour"),
    "unknown key of a pool": (POOL + "colour = 1\n", "pool[0]", "colour"),
    "unknown key of a gpu": (GPU + "colour = 1\n" + POOL, "gpu[0]", "colour"),
    "unknown key of a node": (NODE + "colour = 1\n" + POOL, "node[0]", "colour"),
    "unknown key of a link": (NODE + f"links = [{{{NEAR}, colour = 1}}]\n" + POOL, "node[0]: links[0]", "colour"),
    "unknown key between": (POOL + "[between]\ncolour = 1\n", "between", "colour"),
    "no pool": ("", "mine.toml", "pool"),
    "empty pools": ("pool = []\n", "pool", "at least one"),
    "neither gpu nor node": ("[[pool]]\ncount = 8\n", "pool[0]", "gpu"),
    "no count": ('[[pool]]\ngpu = "H100"\n', "pool[0]", "count"),
    "negative count": ('[[pool]]\ngpu = "H100"\ncount = -8\n', "pool[0]: count", "-8"),
    "fractional count": ('[[pool]]\ngpu = "H100"\ncount = 8.5\n', "pool[0].count", "int"),
    "true as a count": ('[[pool]]\ngpu = "H100"\ncount = true\n', "pool[0].count", "int"),
    "absurd count": (f'[[pool]]\ngpu = "H100"\ncount = {"9" * 30}\n', "pool[0]: count", "18 digits"),
    "count of 5000 digits": (f'[[pool]]\ngpu = "H100"\ncount = {"9" * 5000}\n', "mine.toml", "wanted"),
    "negative price": (POOL + "usd_per_gpu_h = -1\n", "pool[0]", "usd_per_gpu_h"),
    "price that is no number": (POOL + "usd_per_gpu_h = nan\n", "pool[0]", "usd_per_gpu_h"),
    "ambiguous gpu": ('[[pool]]\ngpu = "V100"\ncount = 8\n', "pool[0]: gpu", "V100-SXM2-16GB"),
    "unknown gpu": ('[[pool]]\ngpu = "Z100"\ncount = 8\n', "pool[0]: gpu", "Did you mean"),
    "gpu the node does not hold": (POOL + 'node = "p4d"\n', "pool[0]: node", "holds"),
    "gpu without a node": (GPU + '[[pool]]\ngpu = "x1"\ncount = 8\n', "pool[0]: node", "x1"),
    "gpu named as in the catalog": ('[[gpu]]\nname = "H-100"\nlike = "A100"\n' + POOL, "gpu[0]: name", "like"),
    "node named as in the catalog": ('[[node]]\nname = "p5"\nlike = "dgx-h100"\n' + POOL, "node[0]: name", "like"),
    "gpu without a name": ('[[gpu]]\nlike = "H100"\n' + POOL, "gpu[0]", "name"),
    "gpu with an empty name": ('[[gpu]]\nname = "-"\nlike = "H100"\n' + POOL, "gpu[0]: name", "letters"),
    "two gpus of one name": (GPU + GPU.replace("x1", "X-1") + POOL, "gpu[1]: name", "X-1"),
    "two pools of one name": (POOL + 'name = "a"\n' + POOL + 'name = "A"\n', "pool", "different name"),
    "gpu half described": ('[[gpu]]\nname = "x1"\nsms = 3\n' + POOL, "gpu[0]", "vendor"),
    "infinite memory": (GPU + "memory_bytes = inf\n" + POOL, "gpu[0]", "memory_bytes"),
    "memory beyond floats": (GPU + f"memory_bytes = {'9' * 400}\n" + POOL, "gpu[0]: memory_bytes", "18 digits"),
    "unknown precision": (GPU + "flops_per_s = {bf15 = 1e12}\n" + POOL, "gpu[0]: flops_per_s", "bf16"),
    "no precision": (GPU + "flops_per_s = {}\n" + POOL, "gpu[0]: flops_per_s", "at least one"),
    "relative that is not measured": (GPU + 'relative = "T4"\n' + POOL, "gpu[0]: relative", "A100-SXM4-80GB"),
    "like something that is no name": ('[[gpu]]\nname = "x1"\nlike = 3\n' + POOL, "gpu[0]: like", "name"),
    "like something unknown": ('[[gpu]]\nname = "x1"\nlike = "Q9"\n' + POOL, "gpu[0]", "Q9"),
    "a table where a list is wanted": ('[gpu]\nname = "x1"\n' + POOL, "mine.toml: gpu", "array"),
    "links that are no list": (NODE + "links = 3\n" + POOL, "node[0]: links", "array"),
    "links that shrink": (NODE + f"links = [{{{NEAR}}}, {{{NEARER}}}]\n" + POOL, "node[0]", "growing reach"),
    "links that do not reach": (NODE + f"links = [{{{NEAR}}}]\n" + POOL, "pool[0]", "16 GPUs"),
    "unknown kind of link": ("between = {" + NEAR.replace("nvswitch", "post") + "}\n" + POOL, "between: kind", "post"),
    "link with a negative rate": ("between = {" + NEAR.replace("4e11", "-1") + "}\n" + POOL, "between", "bytes_per_s"),
    "broken TOML": ("[[pool]\n", "mine.toml", "line 1, column 7"),
    "TOML nested without end": ("a = " + "[" * 100_000, "mine.toml", "nested too deeply"),
    "binary": (b"\x7fELF\x00\x01", "mine.toml", "binary"),
    "not UTF-8": (b"# fine\n# caf\xe9\n", "mine.toml: line 2", "UTF-8"),
    "huge": (b"#" * (2**20 + 1), "mine.toml", "at most 1 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_input_error_that_names_its_place(tmp_path: Path, fault: str) -> None:
    text, place, said = FAULTS[fault]
    with pytest.raises(InputError) as caught:
        clusters.read_cluster(written(tmp_path, text))
    assert str(tmp_path / "mine.toml") in str(caught.value)
    assert place in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        clusters.read_cluster(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not a regular file"):
        clusters.read_cluster(tmp_path)
    with pytest.raises(InputError, match="TOML"):
        clusters.read_cluster("a\0b")


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert clusters.read_cluster(written(tmp_path, b"\xef\xbb\xbf" + POOL.encode())).gpus == 16


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: (POOL + text).encode("utf-8", "replace")))
def test_any_bytes_are_a_cluster_or_an_input_error(tmp_path: Path, raw: bytes) -> None:
    with suppress(InputError):
        assert clusters.read_cluster(written(tmp_path, raw)).pools


def test_the_documented_example_works(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "clusters.md"
    blocks = page.read_text(encoding="utf-8").split("```toml\n")[1:]
    assert blocks
    for block in blocks:
        cluster = clusters.read_cluster(written(tmp_path, block.split("```")[0]))
        assert cluster.gpus > 0


def test_unknown_names_stay_unknown_names() -> None:
    with pytest.raises(UnknownName):
        clusters.parse_gpus("8xFoo")


ZONES = """
[[pool]]
gpu = "H100"
count = 8
name = "near"
zone = "east"
[[pool]]
gpu = "A100-80"
count = 8
name = "old"
zone = "east"
[[pool]]
gpu = "H20"
count = 8
name = "far"
zone = "west"
[between]
kind = "roce"
bytes_per_s = 25e9
latency_s = 2e-5
[[link]]
zones = ["east", "west"]
kind = "tcp"
bytes_per_s = 1e9
latency_s = 1e-3
[[link]]
pools = ["old", "far"]
kind = "tcp"
bytes_per_s = 5e8
latency_s = 1e-3
"""


def test_links_between_pools_and_zones(tmp_path: Path) -> None:
    file = tmp_path / "zones.toml"
    file.write_text(ZONES)
    cluster = clusters.read_cluster(file)
    rates = [link.bytes_per_s for pair in ((0, 1), (0, 2), (2, 0), (1, 2)) if (link := cluster.joined_by(*pair))]
    assert rates == [25e9, 1e9, 1e9, 5e8]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ('[[link]]\nzones = ["west", "east"]\nkind = "tcp"\nbytes_per_s = 2e9\nlatency_s = 1e-3\n', "contradict"),
        ('[[link]]\nzones = ["west", "mars"]\nkind = "tcp"\nbytes_per_s = 2e9\nlatency_s = 1e-3\n', "pool or zone"),
        ('[[link]]\nzones = ["west"]\nkind = "tcp"\nbytes_per_s = 2e9\nlatency_s = 1e-3\n', "zones ="),
        ('[[link]]\npools = ["near", "far"]\nkind = "tcp"\nlatency_s = 1e-3\n', "bytes_per_s"),
        *(
            (
                f'[[link]]\npools = ["near", "far"]\nkind = "tcp"\n{name} = {rate}\nlatency_s = 1e-3\n',
                "bytes_per_s: got .*, wanted 1000 to 1e.15 bytes a second",
            )
            for name in ("bytes_per_s", "total_bytes_per_s")
            for rate in ("1e-300", "100", "1e300")
        ),
    ],
)
def test_links_that_cannot_be_are_refused(tmp_path: Path, more: str, wanted: str) -> None:
    file = tmp_path / "zones.toml"
    file.write_text(ZONES + more)
    with pytest.raises(InputError, match=wanted):
        clusters.read_cluster(file)


def test_a_node_says_how_fast_its_hosts_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    node = '[[node]]\nname = "ours"\nlike = "dgx-h100"\nhost_speed = {}\n[[pool]]\nnode = "ours"\ncount = 16\n'
    path.write_text(node.format("1.6"))
    assert clusters.read_cluster(path).pools[0].node.host_speed == 1.6
    assert hardware.node_type("dgx-h100").host_speed == 1
    for bad in ("0", "-1", "nan", "inf", "1e-300", "1e300", "true", '"fast"'):
        path.write_text(node.format(bad))
        with pytest.raises(InputError, match="host_speed"):
            clusters.read_cluster(path)
