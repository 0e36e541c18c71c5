"""Small vocabularies in the form of GGUF metadata, and a slow tokenizer that does what their form promises."""

import numpy as np

from octavo.models.gguf_tokenizer import TokenType

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = (
    TokenType[name].value for name in ("NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "BYTE")
)


def gguf_metadata(kind: str, tokens: dict[str, int], **keys) -> dict:
    """Returns GGUF metadata of a vocabulary given as type by token; ``keys`` are further tokenizer keys."""
    metadata = {"model": kind, "tokens": list(tokens), "token_type": np.array(list(tokens.values()), np.int32), **keys}
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def sentencepiece_metadata(pieces: list[str], *, user_defined: tuple[str, ...] = (), **keys) -> dict:
    """Returns metadata of a sentencepiece vocabulary whose pieces, best first, follow control, user-defined and byte tokens."""
    tokens = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    tokens |= dict.fromkeys(user_defined, USER_DEFINED) | {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    pieces = [piece for piece in pieces if piece not in tokens]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))]
    tokens |= dict.fromkeys(pieces, NORMAL)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return gguf_metadata("llama", tokens, scores=np.array(scores, np.float32), **(ends | keys))


def join_by_score(text: str, metadata: dict) -> list[int]:
    """Returns the ids that sentencepiece's definition gives: join the neighbours whose text has the best score, leftmost first."""
    ids = {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    types, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    parts = list(text)
    while True:
        joins = [(place, ids.get(parts[place] + parts[place + 1])) for place in range(len(parts) - 1)]
        joins = [(place, token_id) for place, token_id in joins if token_id is not None and types[token_id] == NORMAL]
        if not joins:
            break
        place = max(joins, key=lambda join: (scores[join[1]], -join[0]))[0]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [token_id for part in parts for token_id in _part_ids(part, ids)]


def _part_ids(part: str, ids: dict[str, int]) -> list[int]:
    return [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
