"""Grammars that an answer must follow, and what they allow next.

Owns: the way from a schema, an expression or a grammar to a mask over the vocabulary, by llguidance. Must not know: scheduling,
HTTP.

Invariants:
1. What is allowed depends on the grammar and on the answer's tokens alone: not on preemptions, not on the request's other choices.
2. The model's end tokens are allowed exactly where the answer is complete, other control tokens nowhere.
3. The tokens' masks are worked out on a thread of their own, beside the forward pass.
"""

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from octavo.errors import RequestError
from octavo.models.tokenizer import Tokenizer
from octavo.runner.sampling_request import AllowedTokens

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_BLANKS = 20  # in a row between the parts of a JSON document: enough to indent, too few to fill an answer
JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": rf"[ \n]{{1,{MAX_BLANKS}}}", "lenient": False, "coerce_one_of": False}
logger = logging.getLogger("octavo.engine")


@dataclass(frozen=True)
class Grammar:
    """What an answer must be.

    Attributes:
        kind: how ``text`` is to be read: as a JSON schema, a regular expression, a grammar in the notation of Lark or GBNF, of
            Lark alone, or a JSON list of texts to choose from.
        field: the request's field that it comes from, for errors.
    """

    kind: Literal["json", "regex", "grammar", "lark", "choice"]
    text: str
    field: str


class CompiledGrammar:
    """A grammar that is ready for use by any number of requests."""

    def __init__(self, matcher: "LLMatcher", workers: "ThreadPoolExecutor", num_words: int):
        self._matcher = matcher
        self._workers = workers
        self._num_words = num_words

    def constraint(self) -> "GrammarConstraint":
        """Returns the state of an answer that has not begun."""
        return GrammarConstraint(self._matcher.deep_copy(), self._workers, self._num_words)


class GrammarConstraint:
    """Follows one answer through its grammar.

    The state moves by what the answer has gained since the last call, so that it may be asked again for the same answer.
    """

    def __init__(self, matcher: "LLMatcher", workers: "ThreadPoolExecutor", num_words: int):
        self._matcher = matcher
        self._workers = workers
        self._num_words = num_words
        self._num_taken = 0
        self._allowed: Future[AllowedTokens] | None = None

    def fork(self) -> "GrammarConstraint":
        """Returns the same for another answer; this one must not have begun."""
        assert self._num_taken == 0, "an answer was forked after its first token"
        return GrammarConstraint(self._matcher.deep_copy(), self._workers, self._num_words)

    def prepare(self, answer: list[int]) -> None:
        """Starts to work out what may follow the answer's tokens."""
        if self._allowed is not None and self._num_taken == len(answer):
            return
        new_tokens = answer[self._num_taken :]
        self._num_taken = len(answer)
        self._allowed = self._workers.submit(self._advance, new_tokens)

    def allowed(self, answer: list[int]) -> AllowedTokens:
        """Returns what may follow the answer's tokens, waiting for it if need be."""
        self.prepare(answer)
        assert self._allowed is not None, "prepare started nothing"
        return self._allowed.result()

    def _advance(self, new_tokens: list[int]) -> AllowedTokens:
        """Takes tokens and returns what may follow; nothing may where the grammar's limits are exceeded."""
        matcher = self._matcher
        bitmask = np.zeros(self._num_words, np.int32)
        if matcher.consume_tokens(new_tokens):
            words = np.frombuffer(matcher.compute_bitmask(), np.int32)[: self._num_words]
            bitmask[: len(words)] = words
        if matcher.is_error():
            logger.warning(
                "an answer left its grammar: %s",
                matcher.get_error().partition("\n")[0],  # what follows quotes the client's grammar
            )
            bitmask[:] = 0
        return AllowedTokens(bitmask, must_end=matcher.is_stopped())


class GrammarCompiler:
    """Compiles grammars for one model. Safe to use from many threads; none of them may be the engine's, which it would hold up.

    Args:
        vocab_size: tokens that the model's logits have.
        end_token_ids: tokens that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Iterable[int]):
        from concurrent.futures import ThreadPoolExecutor

        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(1, "octavo-grammar")

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Returns a grammar in usable form.

        Raises:
            RequestError: it is wrong, or asks for what cannot be enforced.
        """
        from llguidance import LLMatcher, grammar_from

        if not self._end_token_ids:
            raise RequestError("this model has no end token, so no answer can be complete", field=grammar.field)
        try:
            if grammar.kind == "json":
                text = LLMatcher.grammar_from_json_schema(grammar.text, overrides=JSON_OPTIONS)
            else:
                text = grammar_from(grammar.kind, grammar.text)
            matcher = LLMatcher(self._read_vocabulary(), text, log_level=0)
        except (ValueError, RecursionError) as cause:
            raise RequestError(f"{grammar.field} is not allowed: {cause}", field=grammar.field) from cause
        if matcher.is_error():
            raise RequestError(f"{grammar.field} is not allowed: {matcher.get_error()}", field=grammar.field)
        return CompiledGrammar(matcher, self._workers, -(-self._vocab_size // 32))

    def _read_vocabulary(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._vocabulary is None:
                words = _Vocabulary(self._tokenizer, self._vocab_size, self._end_token_ids)
                self._vocabulary = LLTokenizer(TokenizerWrapper(words), eos_token=self._end_token_ids)
            return self._vocabulary


class _Vocabulary:
    """The vocabulary in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: list[int]):
        known = tokenizer.all_token_bytes()[:vocab_size]
        self.tokens = [*known, *[b""] * (vocab_size - len(known))]
        special = {token_id for token_id in range(len(known)) if tokenizer.is_special(token_id)}
        self.special_token_ids = sorted(special | set(end_token_ids))
        self.eos_token_id = end_token_ids[0]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(), add_special_tokens=False)


def json_grammar(schema: dict[str, Any], field: str) -> Grammar:
    """Returns the grammar of the JSON documents that fit a schema."""
    return Grammar("json", json.dumps(schema), field)
