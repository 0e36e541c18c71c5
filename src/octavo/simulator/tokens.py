"""A simulated sequence's tokens.

Owns: the list that the scheduler and the memory read, and its length to come. Must not know: who reads it.
"""

from itertools import chain

from octavo.simulator.workload import Request


class Tokens(list[int]):
    """The tokens known so far, and how many they will be: what only an oracle may look at.

    Attributes:
        num_prompt_tokens: tokens at the start.
        final_length: tokens at the end.
    """

    def __init__(self, request: Request):
        super().__init__(chain.from_iterable(request.prompt))
        self.num_prompt_tokens = len(self)
        self.final_length = len(self) + len(request.reply)
        self._offset = request.reply.start - len(self)

    def grow(self) -> bool:
        """Appends the next token of the answer; returns whether it was the last."""
        length = len(self)
        self.append(self._offset + length)
        return length + 1 >= self.final_length
