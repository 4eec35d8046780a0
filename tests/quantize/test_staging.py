# SPDX-License-Identifier: Apache-2.0
"""An output is there whole or not at all, and nothing that is no checkpoint is ever deleted."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from vllm_ext.quantize import staging
from vllm_ext.quantize.errors import InputError

DEAD = "1-1"
"""Process 1 did not start at second 1 of 1970: the owner is gone."""


def alive() -> str:
    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def checkpoint(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(content)
    return path


def test_the_output_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with staging.staged(out) as new:
        assert new.parent == out.parent
        (new / "file").write_text("done")
        assert not out.exists()
    assert (out / "file").read_text() == "done"
    assert list(out.parent.iterdir()) == [out]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "old")
    with pytest.raises(KeyboardInterrupt), staging.staged(out) as new:
        (new / "config.json").write_text("half")
        raise KeyboardInterrupt
    assert (out / "config.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_old_output_is_replaced_whole(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "old")
    (out / "stray").write_text("")
    with staging.staged(out) as new:
        (new / "config.json").write_text("new")
    assert [path.name for path in out.iterdir()] == ["config.json"]
    assert (out / "config.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]


def test_leftovers_of_dead_runs_go_and_of_live_ones_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    dead = checkpoint(tmp_path / f".out.vllm-ext-new-{DEAD}", "half")
    living = checkpoint(tmp_path / f".out.vllm-ext-new-{alive()}", "at work")
    other = checkpoint(tmp_path / f".outer.vllm-ext-new-{DEAD}", "of another output")
    strange = checkpoint(tmp_path / ".out.vllm-ext-notes", "not ours")
    assert staging.recover(out) == [f"removed {dead.name}, left by a killed run"]
    assert sorted(tmp_path.iterdir()) == sorted([living, other, strange])


def test_an_output_moved_aside_by_a_killed_run_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    checkpoint(tmp_path / f".out.vllm-ext-old-{DEAD}", "the only copy")
    checkpoint(tmp_path / f".out.vllm-ext-new-{DEAD}", "half")
    assert len(staging.recover(out)) == 2
    assert (out / "config.json").read_text() == "the only copy"
    assert list(tmp_path.iterdir()) == [out]


def test_an_output_moved_aside_goes_when_its_successor_is_there(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "new")
    checkpoint(tmp_path / f".out.vllm-ext-old-{DEAD}", "old")
    staging.recover(out)
    assert (out / "config.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "old")
    with pytest.raises(InputError, match="already exists: give another folder, or --force"):
        staging.check_output(out, tmp_path / "source", force=False)
    staging.check_output(out, tmp_path / "source", force=True)


def test_force_deletes_no_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "home"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds no config.json"):
        staging.check_output(out, tmp_path / "source", force=True)


def test_force_replaces_no_file_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(checkpoint(tmp_path / "elsewhere", ""))
    for name in ("file", "link"):
        with pytest.raises(InputError, match="is no folder"):
            staging.check_output(tmp_path / name, tmp_path / "source", force=True)


@pytest.mark.parametrize("source", ["model", "model/part", "model/weights.gguf"])
def test_the_source_is_never_replaced(tmp_path: Path, source: str) -> None:
    out = checkpoint(tmp_path / "model", "")
    with pytest.raises(InputError, match="is or holds the source"):
        staging.check_output(out, tmp_path / source, force=True)


def test_files_become_readable(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o700)
    (tmp_path / "sub" / "file").touch(mode=0o600)
    staging.make_readable(tmp_path)
    assert (tmp_path / "sub").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "sub" / "file").stat().st_mode & 0o777 == 0o644
