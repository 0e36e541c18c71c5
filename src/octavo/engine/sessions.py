"""Saving and loading conversations.

Owns: the steps of both, each to be called where it says: on the engine's thread between two steps, or on any other. Must not know:
names, HTTP, how a conversation got into memory.

Invariants:
1. Files are read and written off the engine's thread if the caller wants: only `hold`, `begin` and the two ends touch the memory.
2. What is saved is whole: every token of the conversation, its last partial block too.
3. Blocks are held for as long as bytes are moved, and for nothing else: a request that needs all others too waits so long.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.errors import SnapshotError
from octavo.memory.kv_manager import KVManager
from octavo.memory.restore import Place, Restore
from octavo.memory.sequence_cache import SequenceCache
from octavo.tiers.fingerprint import Fingerprint
from octavo.tiers.session_file import SessionFile, write_session


@dataclass(frozen=True)
class SessionInfo:
    """A session that was saved or loaded.

    Attributes:
        token_ids: the whole conversation.
        num_tokens: of it whose KV is in memory now.
        num_bytes: length of the file.
    """

    token_ids: list[int]
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, eq=False)
class HeldSession:
    """A conversation that is kept in memory while it is written."""

    cache: SequenceCache
    namespace: Hashable
    token_ids: list[int]
    blocks: Mapping[Place, int]


@dataclass(frozen=True, eq=False)
class LoadingSession:
    """A conversation that is on its way into memory.

    Attributes:
        restore: None when memory had it already, or has no room for any of it.
        num_known_tokens: tokens that are in memory if nothing comes.
    """

    file: SessionFile
    restore: Restore | None
    num_known_tokens: int


class Sessions:
    """Saves and loads conversations of one engine.

    Args:
        blocks: uint8 ``[num_blocks, block_bytes]``, the pool's storage.
        fingerprint: called when it is first needed: it reads all weights.

    Attributes:
        num_under_way: saves and loads that hold blocks now.
    """

    def __init__(self, kv: KVManager, blocks: np.ndarray, fingerprint: Callable[[], Fingerprint]):
        self._kv = kv
        self._blocks = blocks
        self._fingerprint = fingerprint
        self.num_under_way = 0

    # ---- saving

    def prepare(self) -> None:
        """On any thread, before `hold`: does what takes long and needs no blocks."""
        self._fingerprint()

    def hold(self, token_ids: list[int], namespace: Hashable) -> HeldSession:
        """On the engine's thread: keeps a conversation in memory, to be written.

        Raises:
            SnapshotError: a part of it is not in memory.
        """
        match = self._kv.match([*token_ids, 0], namespace)  # one token more: a match leaves the last one to be computed
        if match.num_tokens < len(token_ids):
            raise SnapshotError(
                f"only {match.num_tokens} of the conversation's {len(token_ids)} tokens are in memory",
                hint="raise kv_memory, and keep enable_prefix_caching on",
            )
        cache, blocks = self._kv.restorer.hold(token_ids, namespace, match)
        self.num_under_way += 1
        return HeldSession(cache, namespace, token_ids, blocks)

    def write(self, held: HeldSession, path: Path) -> SessionInfo:
        """On any thread: writes a held conversation to a file.

        Raises:
            SnapshotError: the disk does not let us; an older file is as it was.
        """
        blocks = {place: self._blocks[block_id].data for place, block_id in held.blocks.items()}
        try:
            num_bytes = write_session(
                path,
                self._fingerprint(),
                namespace=repr(held.namespace),
                token_ids=held.token_ids,
                block_size=self._kv.block_size,
                blocks=blocks,
            )
        except OSError as cause:
            raise SnapshotError(f"the session {path.name!r} cannot be written: {cause.strerror or cause}") from cause
        return SessionInfo(held.token_ids, len(held.token_ids), num_bytes)

    def let_go(self, held: HeldSession) -> None:
        """On the engine's thread: ends `hold`."""
        self.num_under_way -= 1
        self._kv.free(held.cache, held.token_ids)

    # ---- loading

    def open(self, path: Path, namespace: Hashable) -> SessionFile:
        """On any thread: opens a file to be loaded.

        Raises:
            SnapshotError: it is none, is damaged, or belongs to another model, engine or namespace.
        """
        file = SessionFile(path, self._fingerprint())
        if file.description.namespace != repr(namespace):
            file.close()
            raise SnapshotError(
                f"the session {path.name!r} was saved with another namespace",
                hint="load it with the key and the cache_salt it was saved with",
            )
        return file

    def begin(self, file: SessionFile, namespace: Hashable) -> LoadingSession:
        """On the engine's thread: takes blocks for what memory lacks of a conversation, as many as are free or cached."""
        token_ids, places = file.description.token_ids, set(file.description.places)
        match = self._kv.match([*token_ids, 0], namespace)
        size = self._kv.block_size
        fits = self._kv.num_free_blocks // len(self._kv.groups) * size
        for wanted in (len(token_ids), *(fits >> halvings for halvings in range(fits.bit_length()))):
            num_tokens = wanted if wanted == len(token_ids) else wanted // size * size
            num_tokens, missing = self._kv.restorer.longest(match.nodes, num_tokens, places.__contains__)
            if num_tokens <= match.num_tokens:
                break
            restore = self._kv.restorer.begin(token_ids[:num_tokens], namespace, match.nodes, missing)
            if restore is not None:
                self.num_under_way += 1
                return LoadingSession(file, restore, match.num_tokens)
        return LoadingSession(file, None, match.num_tokens)

    def read(self, loading: LoadingSession) -> None:
        """On any thread: reads the blocks into memory. A damaged one is left out; what lies before it serves."""
        if loading.restore is not None:
            for place, block_id in loading.restore.incoming.items():
                if not loading.file.read(place, self._blocks[block_id].data):
                    loading.restore.failed.add(place)

    def finish(self, loading: LoadingSession) -> SessionInfo:
        """On the engine's thread: makes what was read reusable, and closes the file."""
        num_tokens, restore = loading.num_known_tokens, loading.restore
        if restore is not None:
            self.num_under_way -= 1
            num_tokens = max(num_tokens, self._kv.restorer.finish(restore))
            self._kv.free(restore.cache, restore.token_ids)
        loading.file.close()
        return SessionInfo(loading.file.description.token_ids, num_tokens, loading.file.num_bytes)
