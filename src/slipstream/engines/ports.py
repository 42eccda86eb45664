"""Ports: whether a port is free, which process uses it, and finding a free one."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

from slipstream.errors import EngineStartError

_LISTENING = "0A"  # in /proc/net/tcp


def require_free_port(host: str, port: int) -> None:
    """Raises EngineStartError if the port is in use; names the process if possible, and says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections don't count
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise EngineStartError(f"can't listen on {host}:{port}: {error.strerror}") from error
            owner = _owner(port)
            raise EngineStartError(
                f"port {port} is in use{f' by {owner}' if owner else ''}: stop that process, or use another port with "
                "--port"
            ) from error


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _owner(port: int) -> str | None:
    """`name (pid N)` of the process that listens there; None if unknown."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                folder = link.parents[1]
                return f"{(folder / 'comm').read_text().strip()} (pid {folder.name})"
    return None


def _listening_inodes(port: int) -> list[str]:
    lines = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with contextlib.suppress(OSError):
            lines += table.read_text().splitlines()[1:]
    sockets = [line.split() for line in lines]
    return [s[9] for s in sockets if s[3] == _LISTENING and int(s[1].rpartition(":")[2], 16) == port]
