"""A pytest plugin for slow machines: of every test's grid, only the cases that bring a value which no earlier case had.

Of a shape of attention the KV dtype counts. Load it with ``-p arm.each_value``, with ``tests`` on PYTHONPATH.
"""

import pytest


@pytest.hookimpl(trylast=True)  # after the cases of other instruction sets are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the other cases; a test without a grid stays."""
    seen: set[tuple[str, str, str]] = set()
    kept, left_out = [], []
    for item in items:
        values = values_of(item)
        (left_out if values <= seen else kept).append(item)
        seen |= values
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def values_of(item: pytest.Item) -> set[tuple[str, str, str]]:
    """Returns ``(test, parameter, value)`` of the case's every parameter."""
    test = item.nodeid.partition("[")[0]
    case = getattr(item, "callspec", None)
    parameters = case.params if case else {"": None}
    return {(test, name, repr(getattr(value, "kv_dtype", value))) for name, value in parameters.items()}
