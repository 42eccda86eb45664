"""HostCopies: what the device computes, copied to the host while both go on with their work."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that may still be on its way."""

    data: torch.Tensor  # on the host
    done: torch.cuda.Event | None  # None: the copy has ended

    def wait(self) -> torch.Tensor:
        if self.done is not None:
            self.done.synchronize()
        return self.data


class HostCopies:
    """Two buffers: one may be read while the next copy is on its way."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(shape, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]

    def begin(self, source: torch.Tensor) -> Copied:
        """Starts a copy of `source`, as it is after all work started before. It has at most a buffer's entries."""
        self._hosts.reverse()
        host = self._hosts[0][: len(source)]
        host.copy_(source, non_blocking=True)
        if not source.is_cuda:
            return Copied(host, None)
        done = torch.cuda.Event()
        done.record()
        return Copied(host, done)
