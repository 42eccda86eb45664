"""Trail: the features of a stream that its head has not read yet."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def joined_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Trail:
    """Features of one sequence, in the order of the text: one row for each token that the target kept."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self.num_unread = 0  # rows of `_kept`
        self._taken: torch.Tensor | None = None  # what was read last
        self._scored: torch.Tensor | None = None  # rows of the last forward pass: pending tokens, then nodes
        self.output: torch.Tensor | None = None  # [1, hidden] of the head, after the last token it read
        self.drafted: list[torch.Tensor] = []  # the same, after each node of the draft in progress

    def score(self, features: torch.Tensor) -> None:
        self._scored = features

    def keep(self, num_pending: int, path: Sequence[int]) -> None:
        if self._scored is None:
            return
        if all(node == i for i, node in enumerate(path)):
            self._kept.append(self._scored[: num_pending + len(path)])
        else:
            self._kept.append(self._scored[[*range(num_pending), *(num_pending + node for node in path)]])
        self.num_unread += num_pending + len(path)
        self._scored = None

    def take(self) -> torch.Tensor:
        """Removes all that was kept, and returns it [tokens, features]."""
        self._taken = taken = joined_rows(self._kept)
        self._kept, self.num_unread = [], 0
        return taken

    def read_again(self) -> None:
        """Puts back the last row that was taken."""
        assert self._taken is not None
        self._kept, self.num_unread = [self._taken[-1:]], 1

    def forget(self) -> None:
        self._kept, self.num_unread, self._taken = [], 0, None
        self._scored, self.output, self.drafted = None, None, []
