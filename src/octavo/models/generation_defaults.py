"""What a model's files say about sampling and about the end of an answer.

Owns: reading these values. Must not know: how sampling works.

An answer ends at the union of the end tokens that ``config.json``, ``generation_config.json`` and the tokenizer name; for a GGUF
file, of those in its header and of the control tokens known to end a turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.errors import CheckpointError
from octavo.models.gguf_header import MetadataValue
from octavo.models.tokenizer import Tokenizer

SAMPLING_FIELDS = {  # field -> the types it may have; the names are those of `SamplingParams`
    "temperature": (int, float),
    "top_p": (int, float),
    "min_p": (int, float),
    "top_k": (int,),
    "repetition_penalty": (int, float),
}
# Headers often name only the token that ends a document. These end a turn in the models that have them.
END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")


@dataclass(frozen=True)
class GenerationDefaults:
    """A model's own sampling values and end tokens.

    Attributes:
        sampling: values for fields of `SamplingParams` that a request leaves open.
        end_token_ids: tokens that end an answer.
    """

    sampling: Mapping[str, float | int] = field(default_factory=dict)
    end_token_ids: frozenset[int] = frozenset()


def read_hf_defaults(config: Mapping, generation_config: Mapping, tokenizer: Tokenizer) -> GenerationDefaults:
    """Returns the defaults of a model folder.

    Args:
        config: what config.json holds.
        generation_config: what generation_config.json holds; empty when there is none.
        tokenizer: the model's tokenizer.

    Raises:
        CheckpointError: a value has a type that it cannot have.
    """
    text_config = config.get("text_config") or {}
    listed = (_token_ids(source.get("eos_token_id")) for source in (config, text_config, generation_config))
    end_token_ids = frozenset().union(_tokenizer_end(tokenizer), *listed)
    sampling = {
        name: _checked(name, generation_config[name]) for name in SAMPLING_FIELDS if generation_config.get(name) is not None
    }
    if generation_config.get("do_sample") is False:
        sampling["temperature"] = 0.0
    return GenerationDefaults(sampling, end_token_ids)


def read_gguf_defaults(metadata: Mapping[str, MetadataValue], tokenizer: Tokenizer) -> GenerationDefaults:
    """Returns the defaults of a GGUF file, which has no sampling values.

    Raises:
        CheckpointError: a token id has a type that it cannot have.
    """
    listed = (_token_ids(metadata.get(f"tokenizer.ggml.{role}_token_id")) for role in ("eos", "eot", "eom"))
    known = (tokenizer.token_id(token) for token in END_OF_TURN_TOKENS)
    ends_of_turn = {token_id for token_id in known if token_id is not None and tokenizer.is_special(token_id)}
    return GenerationDefaults(end_token_ids=frozenset().union(_tokenizer_end(tokenizer), ends_of_turn, *listed))


def _tokenizer_end(tokenizer: Tokenizer) -> set[int]:
    return set() if tokenizer.eos_id is None else {tokenizer.eos_id}


def _token_ids(value: object) -> set[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise CheckpointError(f"an end-of-sequence token id is {value!r}; a whole number or a list of them is allowed")
    return set(ids)


def _checked(name: str, value: object) -> float | int:
    if isinstance(value, bool) or not isinstance(value, SAMPLING_FIELDS[name]):
        raise CheckpointError(f"generation_config.json has {name}={value!r}, which is no number of the right kind")
    return value
