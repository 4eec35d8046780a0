# SPDX-License-Identifier: Apache-2.0
"""What a run shows while it works."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import types

import pytest
import tqdm as tqdm_package

from tests.conftest import ROOT
from vllm_ext.quantize.progress import Progress

LOOPS = {"known": ("count", "rest"), "inside": (None, None)}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An imported module with a tqdm of its own."""
    module = types.ModuleType("somepackage.loops")
    vars(module)["tqdm"] = tqdm_package.tqdm
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_loops_of_other_packages_become_steps(package: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(3, enabled=True)
    progress.begin("first")
    with progress.adopt(("somepackage.",), LOOPS):
        assert list(package.tqdm([1, 2], desc="inside")) == [1, 2]
        assert list(package.tqdm([1, 2], desc="unknown")) == [1, 2]
        assert list(package.tqdm(iter([3]), desc="known", total=1)) == [3]
        package.tqdm(total=7).update(1)
    progress.end()
    assert package.tqdm is tqdm_package.tqdm
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(":")[0] for line in lines] == ["[1/3] first", "[2/3] count", "[3/3] rest"]


def test_quiet_is_quiet(package: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(3, enabled=False)
    progress.begin("first")
    with progress.adopt(("somepackage.",), LOOPS):
        assert list(package.tqdm([1, 2], desc="known")) == [1, 2]
    progress.end()
    progress.say("done")
    assert capsys.readouterr() == ("", "")


SHOW = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tqdm import tqdm
from vllm_ext.quantize.progress import Progress
progress = Progress(1, enabled=True)
with progress.adopt(("__main__",), {{"loop": ("count", None)}}):
    for _ in tqdm(range(3), desc="loop"):
        time.sleep(0.2)
progress.end()
"""


def test_on_a_terminal_a_bar_shows_how_far_a_step_is() -> None:
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.execv(sys.executable, [sys.executable, "-c", SHOW])
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the child has closed its side
            break
        if not part:
            break
        shown += part
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    assert b"[1/1] count:   0%" in shown and b" 2/3 " in shown
    assert shown.endswith(b"s\r\n")
