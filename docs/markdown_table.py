"""Tables in Markdown, as the scripts that write pages need them."""

from collections.abc import Iterable


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
