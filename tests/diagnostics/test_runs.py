"""Run folders: finding one, naming one, and its manifest."""

import os
import re
from pathlib import Path

import pytest

from tests.diagnostics.run_samples import manifest
from tests.records import problems
from tocsin.diagnostics.runs import (
    BadManifest,
    RunNotFound,
    find_run,
    find_run_below,
    list_runs,
    new_run_id,
    read_manifest,
    write_manifest,
)


def run_folder(runs_dir: Path, run_id: str, created: str = "2026-01-31T12:00:00.000Z") -> Path:
    folder = runs_dir / run_id
    folder.mkdir(parents=True)
    write_manifest(folder, manifest(run_id, created))
    return folder


def test_a_new_id_is_readable_and_sorts_by_time():
    assert re.fullmatch(r"\d{8}-\d{6}-demo-[0-9a-f]{4}", new_run_id("demo"))
    assert re.fullmatch(r"\d{8}-\d{6}-my-model-v2-[0-9a-f]{4}", new_run_id("../My model, V2!"))
    assert re.fullmatch(r"\d{8}-\d{6}-run-[0-9a-f]{4}", new_run_id())


def test_the_manifest_comes_back_equal_and_leaves_nothing_beside_it(tmp_path: Path):
    folder = run_folder(tmp_path, "run-a")
    assert read_manifest(folder) == manifest("run-a")
    assert os.listdir(folder) == ["run.json"]
    assert list(problems(tmp_path)) == []


def test_a_run_is_found_by_path_id_prefix_and_latest(tmp_path: Path):
    old = run_folder(tmp_path, "20260131-120000-demo-3f2a", "2026-01-31T12:00:00.000Z")
    new = run_folder(tmp_path, "20260131-110000-demo-77aa", "2026-02-01T12:00:00.000Z")
    assert find_run(str(old), Path("/nowhere")) == old
    assert find_run("20260131-120000-demo-3f2a", tmp_path) == old
    assert find_run("20260131-12", tmp_path) == old
    assert find_run("latest", tmp_path) == new
    assert list_runs(tmp_path) == [new, old]


def test_an_id_that_begins_another_is_still_itself(tmp_path: Path):
    short = run_folder(tmp_path, "demo")
    run_folder(tmp_path, "demo-2")
    assert find_run("demo", tmp_path) == short


@pytest.mark.corrupt_files_expected
def test_a_run_without_manifest_is_dated_by_its_folder(tmp_path: Path):
    dated = run_folder(tmp_path, "dated", "2026-01-31T12:00:00.000Z")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "events.jsonl").touch()
    os.utime(bare, (0, 0))
    (tmp_path / "no-run").mkdir()
    assert list_runs(tmp_path) == [dated, bare]


def test_an_ambiguous_prefix_lists_the_candidates(tmp_path: Path):
    run_folder(tmp_path, "demo-1")
    run_folder(tmp_path, "demo-2")
    with pytest.raises(RunNotFound, match=r"got `demo`, which begins 2: demo-2, demo-1; add characters"):
        find_run("demo", tmp_path)


def test_an_unknown_run_lists_what_there_is(tmp_path: Path):
    for number in range(10):
        run_folder(tmp_path, f"demo-{number}")
    with pytest.raises(RunNotFound, match=r"got `nope`; there are: demo-9, .* and 2 more"):
        find_run("nope", tmp_path)
    with pytest.raises(RunNotFound, match="got ``"):
        find_run("", tmp_path)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../demo-1", "demo-1/../demo-1", "/", "a\0b", "x" * 300, "dé", "..%2f"]
)
def test_over_a_network_nothing_but_a_folder_of_the_runs_folder_can_be_named(tmp_path: Path, name: str):
    inside = run_folder(tmp_path / "runs", "demo-1")
    outside = run_folder(tmp_path, "demo-1")
    assert find_run_below("demo-1", tmp_path / "runs") == inside
    assert find_run_below("demo", tmp_path / "runs") == inside
    assert find_run_below("latest", tmp_path / "runs") == inside
    for path in (name, str(outside), str(inside)):
        with pytest.raises(RunNotFound, match=r"`run` must be the id of a run.*; there are: demo-1$"):
            find_run_below(path, tmp_path / "runs")


def test_no_runs_at_all_is_said_with_the_remedy(tmp_path: Path):
    with pytest.raises(RunNotFound, match=r"got `latest` and no runs; start one with `tocsin demo`"):
        find_run("latest", tmp_path / "runs")


@pytest.mark.corrupt_files_expected
def test_a_manifest_that_is_missing_or_broken_is_named(tmp_path: Path):
    with pytest.raises(RunNotFound, match=r"must be a run folder, got one without `run.json`"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").write_text('{"run_id": "a"}')
    with pytest.raises(BadManifest, match=r"run.json: `created`: is required and missing"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadManifest, match=r"run.json"):
        read_manifest(tmp_path)
