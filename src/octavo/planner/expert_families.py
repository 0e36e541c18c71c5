"""Mixture-of-experts and other attention families that the engine does not run: config.json to `PlanSpec`.

Owns: what these families store and count. Must not know: recurrent layers.
"""

from octavo.planner.config_fields import FULL, SLIDING, Fields, listed_layer_types
from octavo.planner.plan_spec import AttentionKind, Parameters, PlanSpec


def read_mixtral(fields: Fields) -> PlanSpec:
    """Mixtral: every layer's MLP is a choice of experts."""
    num_experts, width = fields.need("num_local_experts"), fields.need("intermediate_size")
    layers, hidden = fields.num_layers, fields.hidden
    return PlanSpec(
        architecture="mixtral",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers, fields.kv_elements, fields.get("sliding_window", None)),),
        workspace_width=fields.workspace_width(width * fields.need("num_experts_per_tok")),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * fields.attention_matrices(),
            mlp=0,
            experts=layers * num_experts * fields.gated_mlp(width),
            other=layers * (2 * hidden + hidden * num_experts) + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok"),
    )


def read_qwen3_moe(fields: Fields) -> PlanSpec:
    """Qwen3 with experts in every layer, or in every ``decoder_sparse_step``-th."""
    num_experts, width = fields.need("num_experts"), fields.need("moe_intermediate_size")
    layers, hidden = fields.num_layers, fields.hidden
    dense_layers, step = fields.get("mlp_only_layers", ()), fields.get("decoder_sparse_step", 1)
    sparse = sum(layer not in dense_layers and (layer + 1) % step == 0 for layer in range(layers))
    dense_mlp = fields.gated_mlp(fields.need("intermediate_size")) if sparse < layers else 0
    biases = fields.qkv_bias() + hidden if fields.get("attention_bias", False) else 0
    window = fields.get("sliding_window", None) if fields.get("use_sliding_window", False) else None
    return PlanSpec(
        architecture="qwen3_moe",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers, fields.kv_elements, window),),
        workspace_width=fields.workspace_width(width * fields.need("num_experts_per_tok")),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * fields.attention_matrices(),
            mlp=(layers - sparse) * dense_mlp,
            experts=sparse * num_experts * fields.gated_mlp(width),
            other=layers * (2 * hidden + 2 * fields.head_dim + biases) + sparse * hidden * num_experts + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok"),
    )


def read_gpt_oss(fields: Fields) -> PlanSpec:
    """gpt-oss: windows in every other layer, attention sinks, biases everywhere, experts in mxfp4."""
    layers, hidden, width = fields.num_layers, fields.hidden, fields.need("intermediate_size")
    num_experts = fields.need("num_local_experts")
    alternating = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    layer_types = listed_layer_types(fields, (FULL, SLIDING), alternating)
    sliding = layer_types.count(SLIDING)
    vectors = 2 * hidden + fields.qkv_bias() + hidden + fields.num_heads
    router = (hidden + 1) * num_experts
    expert_biases = num_experts * (2 * width + hidden)
    return PlanSpec(
        architecture="gpt_oss",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(
            AttentionKind(layers - sliding, fields.kv_elements),
            AttentionKind(sliding, fields.kv_elements, fields.need("sliding_window")),
        ),
        workspace_width=fields.workspace_width(width * fields.need("num_experts_per_tok")),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * fields.attention_matrices(),
            mlp=0,
            experts=layers * num_experts * fields.gated_mlp(width),
            other=layers * (vectors + router + expert_biases) + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok"),
        stored_format="mxfp4",
    )


def read_glm4_moe(fields: Fields) -> PlanSpec:
    """GLM-4.5: a few dense layers, then routed experts beside one that every token uses."""
    qk_norm = 2 * fields.head_dim if fields.get("use_qk_norm", False) else 0
    biases = fields.qkv_bias() if fields.get("attention_bias", False) else 0
    return _shared_expert_model(
        "glm4_moe",
        fields,
        AttentionKind(fields.num_layers, fields.kv_elements),
        matrices=fields.attention_matrices(),
        vectors=2 * fields.hidden + qk_norm + biases,
        corrects_scores=True,
    )


def read_deepseek_v3(fields: Fields) -> PlanSpec:
    """DeepSeek V3 and R1: a latent in place of K and V (MLA)."""
    return _latent_model("deepseek_v3", fields, corrects_scores=True)


def read_mistral4(fields: Fields) -> PlanSpec:
    """Mistral Small 4: the latent and the experts of DeepSeek V3, without its corrected scores."""
    return _latent_model("mistral4", fields, corrects_scores=False)


def _latent_model(architecture: str, fields: Fields, *, corrects_scores: bool) -> PlanSpec:
    hidden, heads = fields.hidden, fields.num_heads
    kv_rank, rope_dim = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    nope_dim, v_dim = fields.need("qk_nope_head_dim"), fields.need("v_head_dim")
    q_width, q_rank = heads * (nope_dim + rope_dim), fields.get("q_lora_rank", 0)
    queries = q_rank * (hidden + q_width) if q_rank else hidden * q_width
    return _shared_expert_model(
        architecture,
        fields,
        AttentionKind(fields.num_layers, kv_rank + rope_dim, is_latent=True),
        matrices=queries + hidden * (kv_rank + rope_dim) + kv_rank * heads * (nope_dim + v_dim) + heads * v_dim * hidden,
        vectors=2 * hidden + q_rank + kv_rank,
        corrects_scores=corrects_scores,
    )


def _shared_expert_model(
    architecture: str, fields: Fields, attention: AttentionKind, *, matrices: int, vectors: int, corrects_scores: bool
) -> PlanSpec:
    """Returns a model whose first layers are dense and whose others have routed and shared experts.

    Args:
        matrices: parameters of one layer's attention.
        vectors: parameters of one layer's norms and biases.
        corrects_scores: a router has one more parameter for each expert, which corrects its score.
    """
    layers, hidden, num_experts = fields.num_layers, fields.hidden, fields.need("n_routed_experts")
    dense = fields.get("first_k_dense_replace", 0)
    sparse = layers - dense
    expert, dense_width = fields.gated_mlp(fields.need("moe_intermediate_size")), fields.need("intermediate_size")
    return PlanSpec(
        architecture=architecture,
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(attention,),
        workspace_width=fields.workspace_width(dense_width),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * matrices,
            mlp=dense * fields.gated_mlp(dense_width) + sparse * fields.get("n_shared_experts", 0) * expert,
            experts=sparse * num_experts * expert,
            other=layers * vectors + sparse * (hidden + corrects_scores) * num_experts + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok"),
    )


def read_minimax_m2(fields: Fields) -> PlanSpec:
    """MiniMax-M2: full attention in every layer, q and k normalised over all heads, experts chosen by corrected scores."""
    num_experts, width = fields.need("num_local_experts"), fields.need("intermediate_size")
    layers, hidden = fields.num_layers, fields.hidden
    norms = 2 * hidden + (fields.num_heads + fields.num_kv_heads) * fields.head_dim
    return PlanSpec(
        architecture="minimax_m2",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers, fields.kv_elements),),
        workspace_width=fields.workspace_width(width * fields.need("num_experts_per_tok")),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * fields.attention_matrices(),
            mlp=0,
            experts=layers * num_experts * fields.gated_mlp(width),
            other=layers * (norms + (hidden + 1) * num_experts) + hidden,
        ),
        num_experts=num_experts,
        experts_per_token=fields.need("num_experts_per_tok"),
    )


def read_dense(fields: Fields) -> PlanSpec:
    """Ministral 3 and Seed-OSS: Llama's layers, with or without biases of q, k and v."""
    layers, hidden, width = fields.num_layers, fields.hidden, fields.need("intermediate_size")
    biases = fields.qkv_bias() if fields.get("attention_bias", fields.need("model_type") == "seed_oss") else 0
    return PlanSpec(
        architecture=fields.need("model_type"),
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers, fields.kv_elements, fields.get("sliding_window", None)),),
        workspace_width=fields.workspace_width(width),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=False),
            attention=layers * fields.attention_matrices(),
            mlp=layers * fields.gated_mlp(width),
            experts=0,
            other=layers * (2 * hidden + biases) + hidden,
        ),
    )


def read_gemma3n(fields: Fields) -> PlanSpec:
    """Gemma 3n: the last layers read the K and V of earlier ones. Its parameters are told by a checkpoint's headers only."""
    layers, shared = fields.num_layers, fields.get("num_kv_shared_layers", 0)
    pattern = [FULL if (layer + 1) % 5 == 0 else SLIDING for layer in range(layers)]
    storing = listed_layer_types(fields, (FULL, SLIDING), pattern)[: layers - shared]
    return PlanSpec(
        architecture="gemma3n",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(
            AttentionKind(storing.count(FULL), fields.kv_elements),
            AttentionKind(storing.count(SLIDING), fields.kv_elements, fields.need("sliding_window")),
        ),
        workspace_width=fields.workspace_width(fields.largest("intermediate_size")),
        parameters=None,
        num_sharing_layers=shared,
    )


def read_opt(fields: Fields) -> PlanSpec:
    """OPT: multi-head attention, an MLP without a gate, biases everywhere, learned positions (two more than it has)."""
    layers, hidden, width = fields.num_layers, fields.hidden, fields.need("ffn_dim")
    return PlanSpec(
        architecture="opt",
        max_position=fields.need("max_position_embeddings"),
        vocab_size=fields.need("vocab_size"),
        attention=(AttentionKind(layers, fields.kv_elements),),
        workspace_width=fields.workspace_width(width),
        parameters=Parameters(
            embedding=fields.table,
            head=fields.head(tied=True),
            attention=layers * fields.attention_matrices(),
            mlp=layers * 2 * hidden * width,
            experts=0,
            other=layers * (9 * hidden + width) + 2 * hidden + (fields.need("max_position_embeddings") + 2) * hidden,
        ),
    )
