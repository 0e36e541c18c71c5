"""Finds stop strings in a text that arrives in pieces.

Owns: the text held back because a stop string may have begun. Must not know: tokens.

Invariants:
1. What was released never contains a matched stop string's first character (unless the request wants the string in its output).
2. The text held back is a proper prefix of some stop string.
3. The result does not depend on how the text was cut into pieces: the stop string that ends first wins, of those the longest.
"""

from collections.abc import Sequence


class StopStringMatcher:
    """Watches one choice's text."""

    def __init__(self, stops: Sequence[str], *, include_match: bool):
        self._stops = stops
        self._include_match = include_match
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str | None]:
        """Takes the next piece of text.

        Returns:
            the text that is certain now, and the stop string that was found or None. After a match nothing more may be fed.
        """
        if not self._stops:
            return piece, None
        text = self._held + piece
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            end, start, stop = min(ends)
            self._held = ""
            return text[: end if self._include_match else start], stop
        num_held = self._possible_start(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def flush(self) -> str:
        """Releases what is held back; no stop string can follow any more."""
        text, self._held = self._held, ""
        return text

    def _possible_start(self, text: str) -> int:
        """Returns the length of the longest end of ``text`` that begins some stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
