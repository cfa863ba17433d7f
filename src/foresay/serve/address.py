"""Where a server listens and with which certificate: checked before a model is loaded. No torch."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass

from foresay.errors import InputError

__all__ = [
    "LOCAL",
    "Address",
    "check_address",
    "check_certificate",
    "check_origin",
    "is_loopback",
    "listening",
]

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_ORIGIN = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_SEND_BUFFER = 256 << 10  # of a socket: what a slow reader may leave in the kernel
_STALLED = 60_000  # milliseconds after which the kernel gives up a peer that reads nothing


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    port         0: any free port
    certificate  a file for TLS, with its `key`; None: without TLS
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: str | None = None
    key: str | None = None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host in LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_origin(origin: str) -> None:
    """Check the origin of a web page.

    Raises: InputError.
    """
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise InputError(
            f"the origin is {origin!r} (--cors-origin); expected '*', or a scheme and a host in "
            "lowercase without a path, such as 'https://chat.example.org' or "
            "'http://localhost:3000'"
        )


def check_address(address: Address) -> None:
    """Check that the address is free and its certificate can be used.

    Raises: InputError.
    """
    check_certificate(address.certificate, address.key)
    listening(address).close()


def check_certificate(certificate: str | None, key: str | None) -> None:
    """Check that both files can be read and fit each other; None and None: without TLS.

    Raises: InputError.
    """
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise InputError("one of --ssl-certfile and --ssl-keyfile is given; expected both")
    for option, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        try:
            with open(path, "rb") as file:
                file.read(1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"{option} is '{path}', which cannot be read: {why}; expected a PEM file"
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise InputError(
            f"--ssl-certfile is '{certificate}', which holds no certificate; expected one in PEM"
        ) from error
    asked = False

    def no_password() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        if asked:
            return  # the server asks for the password when it starts
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"--ssl-keyfile is '{key}', which does not fit --ssl-certfile '{certificate}'; "
                "expected the private key of that certificate"
            ) from error
        if "PEM" in str(error):
            raise InputError(
                f"--ssl-keyfile is '{key}', which holds no private key; expected the one of "
                f"--ssl-certfile '{certificate}' in PEM"
            ) from error
        raise InputError(
            f"--ssl-certfile '{certificate}' and --ssl-keyfile '{key}' cannot be used "
            f"({error.reason or error}); expected a certificate and its private key"
        ) from error


def listening(address: Address) -> socket.socket:
    """A socket that is bound to the address; its owner closes it.

    Raises: InputError for an address that is not free, or none of this machine.
    """
    listener = None
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED)
        listener.bind(where)
    except (OSError, OverflowError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        raise InputError(
            f"{address.host} port {address.port} cannot be listened on: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    return listener
