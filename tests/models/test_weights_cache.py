"""The cache of weights: built once, whole or not at all, and never on a full disk."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from foresay.errors import ModelError
from foresay.models import weights
from foresay.models.weights import cache
from models import gguf_files
from models.weight_files import printed, small_file, visible


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORESAY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert cache.cache_folder() == Path("/h/.cache/foresay")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/foresay")
    monkeypatch.setenv("FORESAY_CACHE", "~/f")
    assert cache.cache_folder() == Path("/h/f")
    assert cache.cache_folder("/given") == Path("/given")


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_bytes(b"x" * 1000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.place(tmp_path / "m", fails, needed=1)
    assert not visible(tmp_path)


def placing(final: Path, build: str) -> subprocess.Popen[str]:
    code = f"""
        import os, sys, time
        from pathlib import Path
        from foresay.models.weights.cache import place

        def build(folder):
            {build}

        print(place(Path({str(final)!r}), build, needed=1), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    step = f"open({str(log)!r}, 'a').write('x'); time.sleep(0.5); (folder / 'a').touch()"
    both = [placing(tmp_path / "m", step) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert said == [f"{tmp_path / 'm'}\n"] * 2
    assert log.read_text() == "x"


def test_a_killed_process_leaves_what_the_next_removes(tmp_path: Path) -> None:
    process = placing(tmp_path / "m", "(folder / 'half').touch(); time.sleep(60)")
    for _ in range(600):
        if (tmp_path / ".m.tmp" / "half").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / ".m.tmp" / "half").exists() and not (tmp_path / "m").exists()
    cache.place(tmp_path / "m", lambda folder: (folder / "whole").touch(), needed=1)
    assert visible(tmp_path) == ["m", "whole"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot be written.*FORESAY_CACHE"):
        cache.place(tmp_path / "file" / "m", lambda folder: None, needed=1)


def test_too_little_space_is_found_before_anything_is_written(tmp_path: Path) -> None:
    def never(folder: Path) -> None:
        raise AssertionError

    with pytest.raises(ModelError, match=rf"'{tmp_path}' is full: {10**18} bytes are needed"):
        cache.place(tmp_path / "m", never, needed=10**18)
    assert not visible(tmp_path)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    code = """
        import resource, sys
        from foresay.errors import ModelError
        from foresay.models import weights
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            weights.find(sys.argv[1], convert=True, cache=sys.argv[2])
        except ModelError as error:
            print(error)
    """
    done = printed(code, tmp_path / "a.gguf", tmp_path / "a")
    assert "is full:" in done and "bytes are needed" in done
    assert visible(tmp_path) == ["a", "a.gguf", "models"]


def test_a_full_disk(tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf_files.tiny("llama", intermediate_size=960)
    gguf_files.export(model, tmp_path / "a.gguf", "llama")
    with pytest.raises(ModelError, match="is full"):
        weights.find(tmp_path / "a.gguf", convert=True, cache=tiny_disk)
    # Now the space vanishes after the check, as another process may take it.
    room = shutil.disk_usage(tmp_path)._replace(free=10**12)
    monkeypatch.setattr("shutil.disk_usage", lambda path: room)
    with pytest.raises(ModelError, match=rf"'{tiny_disk}/models' is full: \d+ bytes are needed"):
        weights.find(tmp_path / "a.gguf", convert=True, cache=tiny_disk)
    assert visible(tiny_disk) == ["models"]
