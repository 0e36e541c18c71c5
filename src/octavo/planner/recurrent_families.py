"""Families in which some layers keep a state in place of K and V: config.json to `PlanSpec`.

Owns: what Mamba-2 and gated delta-net layers store and count. Must not know: pure attention families.
"""

from dataclasses import dataclass

from octavo.errors import UnsupportedModelError
from octavo.planner.config_fields import FULL, Fields, listed_layer_types
from octavo.planner.plan_spec import AttentionKind, Parameters, PlanSpec, StateKind

LINEAR = "linear_attention"
MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"  # Nemotron-H's letters for its layers


@dataclass(frozen=True)
class Mamba2:
    """The sizes of a Mamba-2 layer."""

    hidden: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel: int

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the short convolution."""
        return self.inner + 2 * self.num_groups * self.state_size

    def kind(self, num_layers: int) -> StateKind:
        """Returns what ``num_layers`` such layers keep."""
        return StateKind(num_layers, self.inner * self.state_size, self.convolved * (self.kernel - 1))

    @property
    def matrices(self) -> int:
        return self.hidden * (self.inner + self.convolved + self.num_heads) + self.inner * self.hidden

    @property
    def vectors(self) -> int:
        """Parameters of the convolution, its bias, the decays and the norm."""
        return self.convolved * (self.kernel + 1) + 3 * self.num_heads + self.inner


def read_qwen3_next(fields: Fields) -> PlanSpec:
    """Qwen3-Next, and Qwen3.5 with experts: three gated delta-net layers to one of attention, experts in every layer."""
    num_experts, width = fields.need("num_experts"), fields.need("moe_intermediate_size")
    shared, chosen = fields.get("shared_expert_intermediate_size", 0), fields.need("num_experts_per_tok")
    layers = fields.num_layers
    return _delta_net_model(
        fields,
        mlp_width=width * chosen + shared,
        mlp=layers * fields.gated_mlp(shared),
        experts=layers * num_experts * fields.gated_mlp(width),
        routers=layers * fields.hidden * (num_experts + 1),
        chosen=(num_experts, chosen),
    )


def read_qwen3_5(fields: Fields) -> PlanSpec:
    """Qwen3.5 and Qwen3.6 without experts: the same layers with a dense MLP."""
    width = fields.need("intermediate_size")
    return _delta_net_model(
        fields, mlp_width=width, mlp=fields.num_layers * fields.gated_mlp(width), experts=0, routers=0, chosen=(0, 0)
    )


def _delta_net_model(fields: Fields, *, mlp_width: int, mlp: int, experts: int, routers: int, chosen: tuple[int, int]) -> PlanSpec:
    """Returns a model of gated delta-net layers with attention in between.

    Args:
        mlp_width: elements of the MLPs that one token goes through.
        mlp, experts, routers: parameters of all layers together.
        chosen: experts that there are, and those of one token.
    """
    layers, hidden = fields.num_layers, fields.hidden
    interval = fields.get("full_attention_interval", 4)
    pattern = [LINEAR if (layer + 1) % interval else FULL for layer in range(layers)]
    linear = listed_layer_types(fields, (FULL, LINEAR), pattern).count(LINEAR)
    full = layers - linear
    delta, delta_matrices, delta_vectors = _delta_net(fields, linear)
    return PlanSpec(
        architecture=fields.need("model_type").removesuffix("_text"),
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(full, fields.kv_elements),),
        states=(delta,),
        workspace_width=fields.workspace_width(mlp_width),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=full * fields.attention_matrices(query_factor=2) + linear * delta_matrices,
            mlp=mlp,
            experts=experts,
            other=full * 2 * fields.head_dim + linear * delta_vectors + layers * 2 * hidden + routers + hidden,
        ),
        num_experts=chosen[0],
        experts_per_token=chosen[1],
    )


def _delta_net(fields: Fields, num_layers: int) -> tuple[StateKind, int, int]:
    """Returns what gated delta-net layers keep, and one layer's parameters in matrices and elsewhere."""
    k_heads, v_heads = fields.need("linear_num_key_heads"), fields.need("linear_num_value_heads")
    k_dim, v_dim, kernel = (fields.need(f"linear_{name}") for name in ("key_head_dim", "value_head_dim", "conv_kernel_dim"))
    keys, values = k_heads * k_dim, v_heads * v_dim
    convolved = 2 * keys + values
    kind = StateKind(num_layers, v_heads * k_dim * v_dim, convolved * (kernel - 1))
    matrices = fields.hidden * (2 * keys + 2 * values + 2 * v_heads) + values * fields.hidden
    return kind, matrices, convolved * kernel + 2 * v_heads + v_dim


def read_nemotron_h(fields: Fields) -> PlanSpec:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, MLP and experts, as the pattern's letters say."""
    pattern, hidden = fields.need("hybrid_override_pattern"), fields.hidden
    count = {letter: pattern.count(letter) for letter in (MAMBA, ATTENTION, MLP, EXPERTS)}
    if sum(count.values()) != len(pattern) or len(pattern) != fields.num_layers:
        raise UnsupportedModelError(
            f"hybrid_override_pattern={pattern!r} does not describe {fields.num_layers} layers of M, *, - and E"
        )
    mamba = Mamba2(
        hidden=hidden,
        num_heads=fields.need("mamba_num_heads"),
        head_dim=fields.need("mamba_head_dim"),
        num_groups=fields.need("n_groups"),
        state_size=fields.need("ssm_state_size"),
        kernel=fields.need("conv_kernel"),
    )
    has_experts = count[EXPERTS] > 0
    num_experts = fields.need("n_routed_experts") if has_experts else 0
    expert_width = fields.need("moe_intermediate_size") if has_experts else 0
    shared_width = fields.get("moe_shared_expert_intermediate_size", 0) if has_experts else 0
    dense = 2 * hidden * fields.need("intermediate_size")
    routers = count[EXPERTS] * (hidden + 1) * num_experts
    return PlanSpec(
        architecture="nemotron_h",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(count[ATTENTION], fields.kv_elements),),
        states=(mamba.kind(count[MAMBA]),),
        workspace_width=fields.workspace_width(fields.need("intermediate_size")),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=count[ATTENTION] * fields.attention_matrices() + count[MAMBA] * mamba.matrices,
            mlp=count[MLP] * dense + count[EXPERTS] * 2 * hidden * shared_width,
            experts=count[EXPERTS] * num_experts * 2 * hidden * expert_width,
            other=count[MAMBA] * mamba.vectors + routers + len(pattern) * hidden + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok") if has_experts else 0,
    )


def read_granite_hybrid(fields: Fields) -> PlanSpec:
    """Granite 4.0-H: Mamba-2 layers with a few of attention, each followed by an MLP, with or without experts."""
    layers, hidden = fields.num_layers, fields.hidden
    num_mamba = listed_layer_types(fields, ("mamba", "attention"), ()).count("mamba")
    mamba = Mamba2(
        hidden=hidden,
        num_heads=fields.need("mamba_n_heads"),
        head_dim=fields.need("mamba_d_head"),
        num_groups=fields.need("mamba_n_groups"),
        state_size=fields.need("mamba_d_state"),
        kernel=fields.need("mamba_d_conv"),
    )
    num_experts = fields.get("num_local_experts", 0)
    width, shared = fields.need("intermediate_size") if num_experts else 0, fields.need("shared_intermediate_size")
    return PlanSpec(
        architecture="granitemoehybrid",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers - num_mamba, fields.kv_elements),),
        states=(mamba.kind(num_mamba),),
        workspace_width=fields.workspace_width(shared),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=True),
            attention=(layers - num_mamba) * fields.attention_matrices() + num_mamba * mamba.matrices,
            mlp=layers * fields.gated_mlp(shared),
            experts=layers * num_experts * fields.gated_mlp(width),
            other=num_mamba * mamba.vectors + layers * hidden * (2 + num_experts) + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.get("num_experts_per_tok", 0) if num_experts else 0,
    )
