"""Sizes of a model that is not on this machine: from the user's options, the rest from the table of families."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.catalogue.families import FAMILIES, Member, member_named, member_sized
from slipstream.errors import UsageError
from slipstream.predict.sizes import ASSUMED_BITS, Sizes

MAX_WEIGHTS_GB = 100_000  # the largest published models have about 2,000
MAX_SHAPE = 100_000  # layers, heads, dimensions


@dataclass(frozen=True, slots=True)
class Stated:
    """What a user knows about a model. `like` names a published model of the same shape."""

    weights_gb: float
    like: str | None = None
    num_layers: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None


def sizes_from(stated: Stated, name: str) -> tuple[Sizes, list[str]]:
    """The sizes, and a line for each assumption. Raises UsageError for an unknown name or an impossible size."""
    if not 0 < stated.weights_gb <= MAX_WEIGHTS_GB:  # false for nan too
        raise UsageError(
            f"the weights of the {name} are {stated.weights_gb} GB; expected more than 0 and at most {MAX_WEIGHTS_GB:,}"
        )
    for what, number in (("layers", stated.num_layers), ("KV heads", stated.num_kv_heads), ("head", stated.head_dim)):
        if number is not None and not 1 <= number <= MAX_SHAPE:
            raise UsageError(f"the {what} of the {name}: {number}; expected 1 to {MAX_SHAPE:,}")
    weight_bytes = int(stated.weights_gb * 1e9)
    member = _member(stated, weight_bytes)
    given = (stated.num_layers, stated.num_kv_heads, stated.head_dim)
    all_given = None not in given
    sizes = Sizes(
        name=stated.like or name,
        weight_bytes=weight_bytes,
        num_parameters=int(member.params_b * 1e9),
        num_layers=stated.num_layers or member.num_layers,
        num_kv_heads=stated.num_kv_heads or member.num_kv_heads,
        head_dim=stated.head_dim or member.head_dim,
        context_length=member.context_length if stated.like else 0,
    )
    if stated.like or all_given:
        return sizes, []
    return sizes, [
        f"{name}: {stated.weights_gb:g} GB at an assumed {ASSUMED_BITS} bits per weight has about the shape of "
        f"{member.name} ({sizes.num_layers} layers, {sizes.num_kv_heads} KV heads of {sizes.head_dim}); for another "
        "shape use --like, or --layers, --kv-heads and --head-dim"
    ]


def _member(stated: Stated, weight_bytes: int) -> Member:
    if stated.like is None:
        return member_sized(weight_bytes * 8 / ASSUMED_BITS / 1e9)
    member = member_named(stated.like)
    if member is None:
        names = ", ".join(m.name for family in FAMILIES for m in family.members)
        raise UsageError(f"unknown published model {stated.like!r}; expected one of {names}")
    return member
