"""Grammars on their way from a request to the engine.

Owns: the limits on their size, depth and compile time, and a store of those used lately. Must not know: how one is compiled.

Invariants:
1. A grammar is compiled on a thread of its own: neither the engine nor any other request waits for it.
2. What is wrong or above a limit is refused before the engine hears of the request.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from octavo.server.config import ServerConfig
from octavo.server.errors import invalid

if TYPE_CHECKING:
    from octavo.engine.grammar import CompiledGrammar, Grammar, GrammarCompiler

MAX_KEPT = 32  # compiled grammars; a client usually sends the same few
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")


class GrammarStore:
    """Gives requests their compiled grammars."""

    def __init__(self, compiler: "GrammarCompiler", config: ServerConfig):
        self._compiler = compiler
        self._config = config
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._workers = ThreadPoolExecutor(2, "octavo-compiler")  # one that hangs until its limit leaves the other

    async def compile(self, grammar: "Grammar | None") -> "CompiledGrammar | None":
        """Returns a grammar in usable form.

        Raises:
            ApiError: it is above a limit.
            RequestError: it is wrong.
        """
        if grammar is None:
            return None
        if grammar not in self._kept:
            self._check(grammar)
            self._kept[grammar] = await self._compile(grammar)
        self._kept.move_to_end(grammar)
        compiled = self._kept[grammar]
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return compiled

    def _check(self, grammar: "Grammar") -> None:
        config = self._config
        num_bytes = len(grammar.text.encode())
        if num_bytes > config.max_grammar_bytes:
            message = f"{grammar.field} has {num_bytes} bytes; max_grammar_bytes={config.max_grammar_bytes} allows no more"
            raise invalid(grammar.field, message)
        if nesting_depth(grammar.text) > config.max_grammar_depth:
            raise invalid(grammar.field, f"{grammar.field} is nested deeper than max_grammar_depth={config.max_grammar_depth}")

    async def _compile(self, grammar: "Grammar") -> "CompiledGrammar":
        seconds = self._config.max_compile_seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._workers, self._compiler.compile, grammar)
        except TimeoutError:
            raise invalid(grammar.field, f"{grammar.field} is not ready within max_compile_seconds={seconds}") from None


def nesting_depth(text: str) -> int:
    """Returns how deep brackets of any kind are nested in a text; brackets inside quotes count too."""
    depth = deepest = 0
    for character in text:
        if character in OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif character in CLOSING and depth:
            depth -= 1
    return deepest
