# SPDX-License-Identifier: Apache-2.0
"""Writing a folder so that it is there whole or not at all.

Work happens in a hidden folder beside the output, named after the process that owns it; the last step is a
rename. A run that was killed leaves such a folder, and the next run for the same output removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_ext.quantize.errors import InputError


def check_output(out: Path, source: Path, force: bool) -> None:
    """Raise InputError unless *out* may be written.

    *source* is the folder or file read from; replacing it, or a folder that is no checkpoint, is refused
    even with *force*.
    """
    target, origin = out.resolve(), source.resolve()
    if target == origin or target in origin.parents:
        raise InputError(f"OUT {out} is or holds the source {source}: give another output folder.")
    if not os.path.lexists(out):
        parent = nearest_parent(out)
        if not os.access(parent, os.W_OK):
            raise InputError(f"OUT {out} cannot be written: no permission to write in {parent}; give another folder.")
        return
    if not force:
        raise InputError(f"OUT {out} already exists: give another folder, or --force to replace it.")
    if out.is_symlink() or not out.is_dir():
        raise InputError(f"OUT {out} exists and is no folder: remove it, or give another name.")
    if any(out.iterdir()) and not (out / "config.json").is_file():
        raise InputError(
            f"OUT {out} exists and holds no config.json, so it is no checkpoint and --force will not delete it: "
            "give another folder."
        )


def nearest_parent(path: Path) -> Path:
    """The closest folder above *path* that exists."""
    parent = path.absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    return parent


def recover(out: Path) -> list[str]:
    """Tidy up after killed runs for *out*; returns what was done, in words.

    A checkpoint that a killed run had moved aside to be replaced is moved back when *out* is missing.
    Folders of runs that are still alive are left alone.
    """
    done: list[str] = []
    if not out.parent.is_dir():
        return done
    for path in sorted(out.parent.glob(f"{_prefix(out)}*")):
        kind, _, owner = path.name.removeprefix(_prefix(out)).partition("-")
        if kind not in ("new", "old") or _alive(owner):
            continue
        if kind == "old" and not os.path.lexists(out):
            path.rename(out)
            done.append(f"put back {out}, which a killed run had moved aside")
        else:
            shutil.rmtree(path)
            done.append(f"removed {path.name}, left by a killed run")
    return done


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A fresh folder to fill, which becomes *out* on leaving the block and vanishes when the block raises."""
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.parent / f"{_prefix(out)}new-{_owner()}"
    new.mkdir()
    try:
        yield new
        _publish(new, out)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def make_readable(folder: Path) -> None:
    """Files 644 and folders 755: amd-quark's files are readable by their owner alone."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _publish(new: Path, out: Path) -> None:
    if not os.path.lexists(out):
        new.rename(out)
        return
    old = out.parent / f"{_prefix(out)}old-{_owner()}"
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _prefix(out: Path) -> str:
    return f".{out.name}.vllm-ext-"


def _owner() -> str:
    """This process, told apart from a later one with the same id by its start time."""
    import psutil

    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def _alive(owner: str) -> bool:
    import psutil

    pid, _, started = owner.partition("-")
    try:
        # One second of tolerance: the start time is derived from the boot time, which may be adjusted.
        return abs(int(psutil.Process(int(pid)).create_time()) - int(started)) <= 1
    except (ValueError, psutil.NoSuchProcess):
        return False
    except psutil.AccessDenied:
        return True
