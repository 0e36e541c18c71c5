"""What a model is, as far as memory goes: wider than `ModelSpec`, because planning needs no arithmetic.

Owns: what each kind of layer keeps per token or per sequence, and the parameters by kind. Must not know: file formats, blocks,
machines.

Invariants:
1. Every layer's cache is counted in exactly one kind; a layer that reads another layer's K and V is counted in none.
"""

from dataclasses import dataclass

from octavo.models.spec import ModelSpec
from octavo.planner.formats import StorageFormat

STATE_ELEMENT_BYTES = 4  # recurrent states are summed over thousands of tokens, so engines keep them in float32
CONVOLUTION_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class AttentionKind:
    """Layers that keep something for every token that they may still look at.

    Attributes:
        elements: stored per token and layer, K and V together.
        window: most recent tokens that are looked at; None = all.
        is_latent: one compressed vector in place of K and V heads, which tensor parallelism cannot divide.
    """

    num_layers: int
    elements: int
    window: int | None = None
    is_latent: bool = False

    def bytes_per_token(self, storage: StorageFormat) -> int:
        """Returns the bytes of one token in all these layers."""
        return self.num_layers * storage.num_bytes(self.elements)

    def stored_tokens(self, context_tokens: int) -> int:
        """Returns how many tokens of a context are kept."""
        return context_tokens if self.window is None else min(context_tokens, self.window)

    @property
    def name(self) -> str:
        """What reports call it."""
        if self.is_latent:
            return "latent (MLA)"
        return "full" if self.window is None else f"window {self.window:,}"


@dataclass(frozen=True)
class StateKind:
    """Layers that keep one state for each sequence, however long it is.

    Attributes:
        state_elements: of the recurrent state, per layer.
        convolution_elements: of the short convolution's memory, per layer.
    """

    num_layers: int
    state_elements: int
    convolution_elements: int

    def num_bytes(self, *, convolution_element_bytes: int = CONVOLUTION_ELEMENT_BYTES) -> int:
        """Returns the bytes of one sequence in all these layers."""
        layer_bytes = self.state_elements * STATE_ELEMENT_BYTES + self.convolution_elements * convolution_element_bytes
        return self.num_layers * layer_bytes


@dataclass(frozen=True)
class Parameters:
    """A model's parameters by what they do.

    Attributes:
        embedding: the input table; also the output head when there is none of its own.
        head: the output head; 0 when tied.
        experts: matrices of all routed experts.
        other: norms, biases, routers and whatever else stays in 16 bits when weights are quantised.
    """

    embedding: int
    head: int
    attention: int
    mlp: int
    experts: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.other


@dataclass(frozen=True)
class PlanSpec:
    """A decoder for the planner.

    Attributes:
        max_position: tokens of the longest sequence.
        attention: the layers that keep tokens, by kind.
        states: the layers that keep a state, by kind.
        num_sharing_layers: attention layers that read the K and V of another layer and store none.
        workspace_width: float32 elements of activations per token of a step.
        parameters: None where only a checkpoint's headers tell.
        num_experts: routed experts per layer; 0 for a dense model.
        experts_per_token: how many of them a token uses.
        stored_format: the weight format that the model's own files have.
        engine_spec: the model for this engine; None when this engine does not run it.
    """

    architecture: str
    max_position: int
    vocab_size: int
    attention: tuple[AttentionKind, ...]
    workspace_width: int
    parameters: Parameters | None
    states: tuple[StateKind, ...] = ()
    num_sharing_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    stored_format: str = "bf16"
    engine_spec: ModelSpec | None = None

    def bytes_per_token(self, storage: StorageFormat) -> int:
        """Returns the bytes of a token while every layer still keeps it."""
        return sum(kind.bytes_per_token(storage) for kind in self.attention)

    def growing_bytes_per_token(self, storage: StorageFormat) -> int:
        """Returns the bytes that each further token adds once the context is longer than every window."""
        return sum(kind.bytes_per_token(storage) for kind in self.attention if kind.window is None)

    def state_bytes(self) -> int:
        """Returns the bytes that a sequence takes whatever its length."""
        return sum(kind.num_bytes() for kind in self.states)

    def sequence_bytes(self, context_tokens: int, storage: StorageFormat) -> int:
        """Returns what a sequence of this length keeps, before it is rounded up to blocks."""
        kept = sum(kind.stored_tokens(context_tokens) * kind.bytes_per_token(storage) for kind in self.attention)
        return kept + self.state_bytes()
