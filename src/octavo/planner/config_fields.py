"""Access to a config.json's fields, and the counts that every family shares.

Owns: refusing what is absent, and the arithmetic of attention and MLP parameters. Must not know: any family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.hf_config import short

FULL, SLIDING = "full_attention", "sliding_attention"
SWITCHES = ("tie_word_embeddings", "use_sliding_window", "attention_bias", "use_qk_norm")
TEXTS = ("model_type", "hybrid_override_pattern")
LISTS = {"layer_types": str, "mlp_only_layers": int}  # with what they list
DIVISORS = ("num_key_value_heads", "decoder_sparse_step", "full_attention_interval")
MAX_COUNT, MAX_LAYERS = 2**31, 10_000  # more is damage, and would only make a plan take forever


@dataclass(frozen=True)
class Fields:
    """The fields of one decoder's description."""

    values: Mapping[str, Any]

    def need(self, name: str) -> Any:
        """Returns a field without which there is no plan; a number is at least 1.

        Raises:
            CheckpointError: it is absent, or not of its kind.
        """
        value = self.values.get(name)
        if value is None:
            raise CheckpointError(f"config.json has no field {name!r}")
        return _checked(name, value, minimum=1)

    def get(self, name: str, default: Any) -> Any:
        """Returns a field, or ``default`` where it is absent or null.

        Raises:
            CheckpointError: it is not of its kind.
        """
        value = self.values.get(name)
        return default if value is None else _checked(name, value, minimum=int(name in DIVISORS))

    def largest(self, name: str) -> int:
        """Returns the largest of a field that is a number for all layers or a list with one for each.

        Raises:
            CheckpointError: it is absent, or neither.
        """
        value = self.values.get(name)
        if not isinstance(value, list):
            return self.need(name)
        for item in value:
            _checked(name, item, minimum=1)
        if len(value) != self.num_layers:
            raise CheckpointError(f"config.json has {name}={short(value)}; it must have an entry for each layer")
        return max(value)

    @property
    def hidden(self) -> int:
        return self.need("hidden_size")

    @property
    def num_layers(self) -> int:
        return self.need("num_hidden_layers")

    @property
    def num_heads(self) -> int:
        return self.need("num_attention_heads")

    @property
    def num_kv_heads(self) -> int:
        return self.get("num_key_value_heads", self.num_heads)

    @property
    def head_dim(self) -> int:
        """The explicit one; only a model that states none has the width per head."""
        return self.get("head_dim", 0) or self.hidden // self.num_heads

    @property
    def kv_elements(self) -> int:
        """Elements of K and V of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def table(self) -> int:
        """Parameters of the embedding table."""
        return self.need("vocab_size") * self.hidden

    def head(self, *, tied: bool) -> int:
        """Parameters of an output head of its own; ``tied`` is what an absent field means."""
        return 0 if self.get("tie_word_embeddings", tied) else self.table

    def attention_matrices(self, *, query_factor: int = 1) -> int:
        """Parameters of one layer's projections; ``query_factor`` 2 where queries come with gates."""
        q_width = self.num_heads * self.head_dim
        return self.hidden * (q_width * (query_factor + 1) + self.kv_elements)

    def qkv_bias(self) -> int:
        """Parameters of the biases of q, k and v of one layer."""
        return self.num_heads * self.head_dim + self.kv_elements

    def gated_mlp(self, width: int) -> int:
        """Parameters of one MLP with a gate."""
        return 3 * self.hidden * width

    def workspace_width(self, mlp_width: int) -> int:
        """Float32 elements that a token of a step needs: residuals, q, k, v, attention's result, and the MLP's three vectors."""
        q_width = self.num_heads * self.head_dim
        return 2 * self.hidden + 2 * q_width + self.kv_elements + 3 * mlp_width


def _checked(name: str, value: Any, *, minimum: int) -> Any:
    """Returns a field's value if it is of the kind that the field has."""
    if name in SWITCHES or name in TEXTS:
        if type(value) is not (bool if name in SWITCHES else str):
            raise CheckpointError(
                f"config.json has {name}={short(value)}; it must be {'true or false' if name in SWITCHES else 'a text'}"
            )
        return value
    if name in LISTS:
        if not isinstance(value, list) or {type(item) for item in value} - {LISTS[name]} or len(value) > MAX_LAYERS:
            kind = "layers' types" if LISTS[name] is str else "layers"
            raise CheckpointError(f"config.json has {name}={short(value)}; it must be a list of {kind}")
        return value
    maximum = MAX_LAYERS if name == "num_hidden_layers" else MAX_COUNT
    if type(value) is not int or not minimum <= value <= maximum:
        raise CheckpointError(f"config.json has {name}={short(value)}; it must be a whole number from {minimum} to {maximum}")
    return value


def listed_layer_types(fields: Fields, allowed: Sequence[str], default: Sequence[str]) -> list[str]:
    """Returns each layer's type, ``default`` where the config lists none.

    Raises:
        UnsupportedModelError: a type is not among ``allowed``, or the list's length is not the number of layers.
    """
    layer_types = list(fields.get("layer_types", default))
    unknown = sorted(set(layer_types) - set(allowed))
    if unknown:
        raise UnsupportedModelError(f"layer type {unknown[0]!r} is not supported; supported are {', '.join(allowed)}")
    if len(layer_types) != fields.num_layers:
        raise UnsupportedModelError(f"layer_types lists {len(layer_types)} layers, num_hidden_layers is {fields.num_layers}")
    return layer_types
