"""A prompt on its way from the HTTP loop to the engine.

Owns: which of the engine's doors it takes. Must not know: HTTP, answers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.runner.pooling import PoolingKind
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.keys import ANONYMOUS, ApiKey

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.grammar import CompiledGrammar


@dataclass(frozen=True)
class Submission:
    """One prompt.

    Attributes:
        key: whose it is.
        pooling: how to embed the prompt; None: it is continued.
        retain: how long its blocks are worth keeping, as a map or a list of maps; None: as long as others'.
        beams: how to search for its continuations; None: they are sampled.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    key: ApiKey = ANONYMOUS
    priority: int = 0
    cache_salt: str | None = None
    grammar: "CompiledGrammar | None" = None
    pooling: PoolingKind | None = None
    retain: Any = None
    beams: BeamSearchParams | None = None

    def add_to(self, engine: "Engine") -> None:
        """Queues the prompt in an engine, which may refuse it."""
        if self.beams is not None:
            engine.add_beam_search(
                self.prompt_token_ids,
                self.beams,
                request_id=self.request_id,
                priority=self.priority,
                cache_salt=self.cache_salt,
                retain=self.retain,
            )
        elif self.pooling is None:
            engine.add_request(
                self.prompt_token_ids,
                self.params,
                request_id=self.request_id,
                priority=self.priority,
                cache_salt=self.cache_salt,
                grammar=self.grammar,
                retain=self.retain,
            )
        else:
            engine.add_embedding_request(
                self.prompt_token_ids,
                pooling=self.pooling,
                request_id=self.request_id,
                priority=self.priority,
                cache_salt=self.cache_salt,
            )
