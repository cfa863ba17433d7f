"""Wrong options of `foresay serve` are named before torch is imported, let alone a model loaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import forks
from foresay.errors import InputError
from foresay.serve.address import check_certificate

CODE = """
import atexit, sys
atexit.register(lambda: print("torch was imported" if "torch" in sys.modules else "no torch"))
sys.argv = ["foresay", "serve", "/nonexistent/model", *sys.argv[1:]]
from foresay.__main__ import main
main()
"""
OPEN = ("--insecure", "--host")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "--host 0.0.0.0 can be reached from other machines and there are"),
        ((*OPEN, "203.0.113.1"), "203.0.113.1 port 8000 cannot be listened on: "),
        ((*OPEN, "bad..host"), "bad..host port 8000 cannot be listened on: "),
        (("--cors-origin", "a.org"), "the origin is 'a.org' (--cors-origin); expected '*', or"),
        (("--pad", "9999999"), "--pad is 9999999; expected 0 to 65536 bytes"),
        (("--api-key", "short"), "an API key is not valid; expected 8 or more ASCII characters"),
        (("--keys", "/nonexistent/keys"), "the file of keys '/nonexistent/keys' cannot be read"),
        (
            ("--tool-format", "xml"),
            "--tool-format is 'xml'; expected auto, hermes, llama3",
        ),
        (("--reasoning", "deep"), "--reasoning is 'deep'; expected auto, none, think, mistral"),
        (("--drafter", "magic"), "drafter is 'magic'; expected one of"),
        (("--ssl-keyfile", "k"), "one of --ssl-certfile and --ssl-keyfile is given; expected both"),
        (
            ("--ssl-certfile", "/nope", "--ssl-keyfile", "/nope"),
            "--ssl-certfile is '/nope', which cannot be read: No such file or directory; expected",
        ),
    ],
)
def test_wrong_options_are_refused_without_torch(options: tuple[str, ...], said: str) -> None:
    done = forks.run("-c", CODE, *options, server=forks.LIGHT)
    assert done.returncode == 1 and done.stderr.startswith(f"foresay: {said}"), done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == "no torch\n"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates a.crt and b.crt, and their keys; of a's also one with password."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("pem")
    for name in ("a", "b"):
        new = f"req -x509 -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key"
        call = [openssl, *new.split(), "-out", f"{name}.crt"]
        subprocess.run(call, cwd=folder, check=True, capture_output=True)
    locked = "rsa -in a.key -aes256 -passout pass:secret -out locked.key"
    subprocess.run([openssl, *locked.split()], cwd=folder, check=True, capture_output=True)
    (folder / "text").write_text("no PEM\n")
    (folder / "empty").write_text("")
    return folder


def test_a_certificate_and_its_key(pem: Path) -> None:
    check_certificate(None, None)
    check_certificate(str(pem / "a.crt"), str(pem / "a.key"))
    check_certificate(str(pem / "a.crt"), str(pem / "locked.key"))  # asks for no password


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("nope", "a.key", "^--ssl-certfile is '.*/nope', which cannot be read: No such file"),
        ("a.crt", "nope", "^--ssl-keyfile is '.*/nope', which cannot be read: No such file"),
        (".", "a.key", "^--ssl-certfile is .* cannot be read: Is a directory; expected a PEM file"),
        ("text", "a.key", "^--ssl-certfile is '.*/text', which holds no certificate; expected one"),
        ("empty", "a.key", "^--ssl-certfile is '.*/empty', which holds no certificate"),
        ("a.key", "a.key", "^--ssl-certfile is '.*/a.key', which holds no certificate"),
        ("a.crt", "text", "^--ssl-keyfile is '.*/text', which holds no private key; expected the"),
        ("a.crt", "a.crt", "^--ssl-keyfile is '.*/a.crt', which holds no private key; expected"),
        (
            "a.crt",
            "b.key",
            "^--ssl-keyfile is '.*/b.key', .*not fit --ssl-certfile '.*/a.crt'; ",
        ),
    ],
)
def test_files_that_cannot_be_used(pem: Path, certificate: str, key: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_certificate(str(pem / certificate), str(pem / key))
