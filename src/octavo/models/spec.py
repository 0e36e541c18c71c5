"""What a model is, as far as its arithmetic goes: the one description that weights, decoder, memory and planner share.

Owns: the fields and what follows from them. Must not know: any file format (`hf_config` and `gguf_config` read those).

Invariants:
1. A spec holds everything that the forward pass depends on besides the weights; two equal specs compute the same.
2. ``head_dim`` is explicit and never derived from ``hidden_size``.
"""

from dataclasses import dataclass

from octavo.errors import UnsupportedModelError
from octavo.models.rotary import Rotary


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer.

    Attributes:
        architecture: "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3" or "phi3".
        intermediate_size: width of the gated MLP.
        max_position: tokens of the longest sequence.
        windows: per layer, the sliding window in tokens, or None for full attention.
        rotaries: the distinct kinds of rotation.
        layer_rotaries: per layer, its index into ``rotaries``.
        activation: "silu" or "gelu_tanh".
        sandwich_norm: whether each sub-layer's output is normalised too, before it joins the residual.
        norm_weight_offset: what is added to every stored norm weight; 1.0 where a checkpoint stores ``w`` and means ``1 + w``.
        qk_norm: whether q and k heads are normalised before the rotation.
        query_scale: factor on every attention score.
        attention_soft_cap, final_soft_cap: 0.0 where there is none.
        embedding_scale: factor on every embedding row.
        tied_head: whether the output head is the embedding table.
        end_token_ids: tokens that end a sequence, as far as the model's description names them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    windows: tuple[int | None, ...]
    rotaries: tuple[Rotary, ...]
    layer_rotaries: tuple[int, ...]
    query_scale: float
    activation: str = "silu"
    sandwich_norm: bool = False
    norm_weight_offset: float = 0.0
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    attention_soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    tied_head: bool = False
    begin_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_q_heads", "num_kv_heads", "head_dim")
        for name in (*sizes, "max_position"):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_q_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_q_heads} query heads cannot share {self.num_kv_heads} KV heads evenly; the first must be a multiple"
            )
        for rotary in self.rotaries:
            if rotary.rotary_dim > self.head_dim:
                raise UnsupportedModelError(f"a rotation of {rotary.rotary_dim} elements does not fit a head of {self.head_dim}")
        if not len(self.windows) == len(self.layer_rotaries) == self.num_layers:
            raise UnsupportedModelError(f"{len(self.windows)} layers are described, but the model has {self.num_layers}")

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def q_width(self) -> int:
        """Elements of all query heads of one token."""
        return self.num_q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all K heads (or all V heads) of one token."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Elements of q, k and v of one token."""
        return self.q_width + 2 * self.kv_width

    @property
    def attention_parity_tokens(self) -> int | None:
        """The context over which a token's attention multiplies as much as the layers' matrices; None where windows bound it."""
        num_full = self.windows.count(None)
        if num_full == 0:
            return None
        layer_weights = self.hidden_size * (self.qkv_width + self.q_width + 3 * self.intermediate_size)
        return max(1, self.num_layers * layer_weights // (2 * num_full * self.q_width))


def share_rotaries(
    sliding_layers: tuple[bool, ...], *, full: Rotary, sliding: Rotary
) -> tuple[tuple[Rotary, ...], tuple[int, ...]]:
    """Returns the distinct rotations that the layers use, and each layer's index among them."""
    per_layer = [sliding if is_sliding else full for is_sliding in sliding_layers]
    distinct = tuple(dict.fromkeys(per_layer))
    return distinct, tuple(distinct.index(rotary) for rotary in per_layer)


def layer_windows(sliding_layers: tuple[bool, ...], window: int | None, max_position: int) -> tuple[int | None, ...]:
    """Returns each layer's window; one as long as the longest sequence hides nothing and is None."""
    if window is None or window >= max_position:
        return (None,) * len(sliding_layers)
    return tuple(window if is_sliding else None for is_sliding in sliding_layers)
