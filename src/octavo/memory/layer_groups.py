"""Which layers share one block table.

Owns: the split of a model's layers into groups of one attention kind and one size. Must not know: blocks, sequences, or bytes.

Invariants:
1. Every layer is in exactly one group; all layers of a group have the same window.
2. No group has more layers than `layers_per_block`; a group with fewer leaves the rest of its blocks unused (padding).
"""

from collections.abc import Sequence
from dataclasses import dataclass

# A larger group means fewer tables to keep; padding costs memory in every block. One layer in sixteen is the most we give for it.
MAX_PADDING_RATIO = 1 / 16


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one block table.

    Attributes:
        layers: indices of the layers, ascending; a layer's place here is its place inside a block.
        window: number of most recent positions a query may see, itself included; None = all.
    """

    layers: tuple[int, ...]
    window: int | None


def group_layers(windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Splits layers into groups of the largest size that pads at most `MAX_PADDING_RATIO` of the layers.

    Args:
        windows: each layer's sliding window in tokens; None = full attention.

    Returns:
        The groups, ordered by their first layer.
    """
    assert windows, "a model has at least one layer"
    assert all(window is None or window >= 1 for window in windows), "a window is at least 1 token"
    layers_of: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        layers_of.setdefault(window, []).append(layer)
    size = _largest_group_size([len(layers) for layers in layers_of.values()])
    groups = [
        LayerGroup(tuple(layers[start : start + size]), window)
        for window, layers in layers_of.items()
        for start in range(0, len(layers), size)
    ]
    return tuple(sorted(groups, key=lambda group: group.layers[0]))


def _largest_group_size(counts: Sequence[int]) -> int:
    for size in range(min(counts), 1, -1):
        padding = sum(-count % size for count in counts)
        if padding <= MAX_PADDING_RATIO * sum(counts):
            return size
    return 1


def first_visible_position(window: int | None, position: int) -> int:
    """Returns the first position that the query at ``position`` sees."""
    return 0 if window is None else max(0, position - window + 1)


def layers_per_block(groups: Sequence[LayerGroup]) -> int:
    """Returns how many layers one block stores: the size of the largest group."""
    return max(len(group.layers) for group in groups)


def blocks_needed(groups: Sequence[LayerGroup], block_size: int, num_tokens: int, max_step_tokens: int) -> int:
    """Returns the most blocks that one sequence holds at once; see `KVManager.blocks_needed`."""
    num_whole = -(-num_tokens // block_size)
    num_blocks = 0
    for group in groups:
        if group.window is None:
            num_blocks += num_whole
        else:  # the window of a step's first query and the step's tokens, at the worst place against the blocks' edges
            span = group.window - 1 + min(max_step_tokens, num_tokens)
            num_blocks += min(num_whole, 1 - (-(span - 1) // block_size))
    return num_blocks
