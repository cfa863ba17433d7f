"""What finds weights: names, GGUF files and folders, and what is wrong with them."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path

import pytest

from foresay.errors import InputError, ModelError
from foresay.models import weights
from foresay.models.load import load
from models.weight_files import printed, small_file


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("smollm2-135", r"'smollm2-135' is no model \(did you mean 'smollm2-135m'\?\)"),
        ("nonsense", r"'nonsense' is no model; expected a folder, a .gguf file, an alias"),
        ("a/b/c", r"'a/b/c' is no model"),
        ("", r"'' is no model; expected a folder"),
        ("missing.gguf", r"'missing.gguf' cannot be read: No such file"),
    ],
)
def test_unknown_names(name: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=match):
        weights.find(name, cache=tmp_path)


def test_a_path_is_never_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no model"):
        weights.find(Path("org/name"), cache=tmp_path)


def test_a_folder_to_load_that_does_not_exist(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(ModelError, match=f"^there is no folder '{gone}'; expected one with config"):
        load(gone)
    with pytest.raises(InputError, match=r"^folder is ''; expected a path"):
        load("")


def test_a_revision_is_for_the_hub(small: Path) -> None:
    for name in (small, weights.DEFAULT_MODEL, "nonsense"):
        with pytest.raises(InputError, match="revision is 'main'"):
            weights.find(name, revision="main")


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    raw = small_file(tmp_path / "a.gguf")
    seen: list[tuple[str, int, int | None]] = []
    found = weights.find(
        tmp_path / "a.gguf",
        convert=True,
        cache=tmp_path / "c",
        progress=lambda *s: seen.append(s),
    )
    stage, done, total = seen[-1]
    written = (found / "model.safetensors").stat()
    assert {s for s, _, _ in seen} == {"check", "convert"} and stage == "convert"
    assert done == total and 0.8 * written.st_size < done <= written.st_size
    note = json.loads((found / "foresay.json").read_text())
    assert note["sha256"] == hashlib.sha256(raw).hexdigest() and note["source"] == "a.gguf"
    (tmp_path / "b.gguf").write_bytes(raw)  # another name, the same file
    assert weights.find(str(tmp_path / "b.gguf"), cache=tmp_path / "c") == found
    assert (found / "model.safetensors").stat().st_mtime_ns == written.st_mtime_ns
    with pytest.raises(ModelError, match=r"but no \.gguf"):
        weights.find(found / "config.json")


def test_a_gguf_file_is_not_converted_unasked(tmp_path: Path) -> None:
    """A copy in bfloat16 may be three times as large as the file."""
    small_file(tmp_path / "a.gguf")
    expected = r"is a GGUF file.*expected convert=True to write one \(0\.0 GB in '.*c/models'\), or"
    with pytest.raises(InputError, match=expected):
        weights.find(tmp_path / "a.gguf", cache=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(InputError, match="convert is 1; expected True or False"):
        weights.find(tmp_path / "a.gguf", convert=1)  # type: ignore[arg-type]


def test_without_the_package_that_reads_gguf(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    code = """
        import sys
        sys.modules["gguf"] = None
        from foresay.errors import ModelError
        from foresay.models import weights
        try:
            weights.find(sys.argv[1], convert=True, cache=sys.argv[2])
        except ModelError as error:
            print(error)
    """
    done = printed(code, tmp_path / "a.gguf", tmp_path)
    assert "with the package 'gguf', which is not installed" in done


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
    for name in ("../b.safetensors", "/b.safetensors", "..", "", "b\0"):
        index_file.write_text(json.dumps({"weight_map": {"a": name}}))
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
