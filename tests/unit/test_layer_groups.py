import pytest

from octavo.memory.layer_groups import LayerGroup, first_visible_position, group_layers, layers_per_block

GEMMA3_270M = ([512] * 5 + [None]) * 3
GEMMA2_2B = [4096, None] * 13


def test_one_kind_of_layer_is_one_group():
    assert group_layers([None] * 30) == (LayerGroup(tuple(range(30)), None),)


@pytest.mark.parametrize(
    ("windows", "size", "num_groups"), [(GEMMA3_270M, 3, 6), (GEMMA2_2B, 13, 2), ([7], 1, 1), ([7, None, 9], 1, 3)]
)
def test_groups_of_known_layouts(windows, size, num_groups):
    groups = group_layers(windows)
    assert (layers_per_block(groups), len(groups)) == (size, num_groups)


@pytest.mark.parametrize("num_full", range(1, 12))
@pytest.mark.parametrize("num_windowed", range(12))
def test_every_layer_is_in_one_group_of_its_kind_and_padding_is_small(num_full, num_windowed):
    windows = [None] * num_full + [64] * num_windowed
    groups = group_layers(windows)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert all(windows[layer] == group.window for group in groups for layer in group.layers)
    padding = len(groups) * layers_per_block(groups) - len(windows)
    assert padding <= len(windows) / 16


def test_a_little_padding_is_taken_for_larger_groups():
    groups = group_layers([None] * 16 + [64] * 31)
    assert sorted(len(group.layers) for group in groups) == [15, 16, 16]


@pytest.mark.parametrize(("window", "position", "first"), [(None, 9, 0), (1, 9, 9), (4, 9, 6), (10, 9, 0), (11, 9, 0)])
def test_the_window_includes_the_query(window, position, first):
    assert first_visible_position(window, position) == first
