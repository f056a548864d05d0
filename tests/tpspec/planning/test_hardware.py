"""Devices as data: every figure has a source, and a file with a fault is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpspec.errors import TpspecError
from tpspec.planning.hardware import FOLDER, find_hardware, hardware_names

GIVEN = (FOLDER / "h100-sxm.yaml").read_text()


@pytest.mark.parametrize("name", hardware_names())
def test_a_device_has_figures_of_the_right_size_each_with_a_dated_source(name):
    device = find_hardware(name)
    assert device.name == name
    assert 16 << 30 <= device.hbm <= 512 << 30
    assert 2e11 <= device.bandwidth <= 2e13
    assert 1e14 <= device.flops["bf16"] <= 1e16
    assert device.flops.get("fp8", 2 * device.flops["bf16"]) == pytest.approx(
        2 * device.flops["bf16"], rel=0.02
    )
    assert device.node_link <= device.link < device.bandwidth
    assert 1e-6 <= device.latency <= device.node_latency <= 1e-4
    fields = ("hbm", "bandwidth", "flops.bf16", "link", "devices_per_node", "node_link", "latency")
    assert all(device.sources[field].endswith(")") for field in fields)


def test_the_figures_of_a_known_device():
    device = find_hardware("h100-sxm")
    assert (device.hbm, device.bandwidth, device.flops["bf16"]) == (80 << 30, 3.35e12, 989.4e12)
    assert (device.link, device.node_link, device.devices_per_node) == (450e9, 50e9, 8)
    assert device.sources["bandwidth"].startswith("NVIDIA H100 Tensor Core GPU, data sheet")
    assert device.sources["latency"].startswith("an assumption")


def test_an_unknown_name_lists_those_that_are_near():
    with pytest.raises(TpspecError, match="no hardware is called 'h100'; near it: h100-sxm"):
        find_hardware("h100")


def test_a_file_is_read_as_the_built_in_ones_are(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(GIVEN.replace("name: h100-sxm", "name: mine").replace("80 GiB", "64 GiB"))
    assert find_hardware(str(path)).hbm == 64 << 30


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("80 GiB", "80", "hbm: '80': the unit is missing"),
        ("is: 450 GB/s", "is: 450 Gb/s", "link: '450 Gb/s': 'Gb/s' are bits"),
        ("from: dgx}", "from: brochure}", "there is no source 'brochure'"),
        ("bf16: {", "fp16: {", "flops: there is no bf16"),
        ("date: 2022-03", "date: soon", "sources.whitepaper.date"),
        ("{is: 8,", "{is: eight,", "devices_per_node: 'eight' is not a quantity such as 8"),
        ("{is: 8,", "{is: 0,", "devices_per_node: '0' must be above 0"),
        ("{is: 8,", "{is: 8.5,", "devices_per_node: '8.5' is not a whole number"),
        ("is: 450 GB/s", "is: 0 GB/s", "link: '0 GB/s' must be above 0"),
        (
            "\nlatency: ",
            "\nlateness: ",
            "lateness: there is no key 'lateness' here; the keys are hardware, name",
        ),
        ("\nlatency: ", "\nlateness: ", "the key 'latency' is missing"),
        ("is: 450 GB/s, from", "is: 450 GB/s, fron", "there is no key 'fron' here; the keys are is, from"),
        ("title: NVIDIA", "title: [it] #", "title: has to be text"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_the_key(tmp_path: Path, old, new, problem):
    path = tmp_path / "mine.yaml"
    assert old in GIVEN
    path.write_text(GIVEN.replace(old, new))
    with pytest.raises(TpspecError) as raised:
        find_hardware(str(path))
    assert problem in str(raised.value)


def test_a_fault_has_its_line(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("hardware: 1\nname: mine\nlink: fast\n")
    with pytest.raises(TpspecError, match=r"link: has to be a mapping of keys to values \(.*mine.yaml:3\)"):
        find_hardware(str(path))


def test_an_empty_file_and_none_are_told_apart(tmp_path: Path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(
        TpspecError, match="a hardware file is a mapping of keys to values, and this is empty"
    ):
        find_hardware(str(tmp_path / "mine"))
    with pytest.raises(TpspecError, match="does not exist") as raised:
        find_hardware(str(tmp_path / "none"))
    assert "download" not in str(raised.value)
