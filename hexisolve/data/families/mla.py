"""Multi-head latent attention (DeepSeek-V2 and after): K and V come from one latent."""

from __future__ import annotations

from hexisolve.data.families.decoder import Traits, check_groups, switch
from hexisolve.data.families.layer_kinds import Reach
from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.model_spec import AttentionSpec


def read_mla(
    reader: ConfigReader, traits: Traits, hidden: int, reach: tuple[Reach, ...]
) -> tuple[AttentionSpec, ...]:
    """MLA of the same shape in every layer.

    Queries: ``D r_q + r_q H a_qk`` (``D H a_qk`` without ``q_lora_rank``); keys and values:
    ``D (r_kv + a_rope) + r_kv H (a_nope + a_v)``; output ``H a_v D``; norms ``r_q + r_kv``.
    """
    heads = reader.size("num_attention_heads")
    # transformers up-projects one key and value per query head, whatever this key says.
    check_groups(reader, heads, reader.optional_size("num_key_value_heads") or 0)
    rope, nope = reader.size("qk_rope_head_dim"), reader.size("qk_nope_head_dim")
    v_dim, kv_rank = reader.size("v_head_dim"), reader.size("kv_lora_rank")
    q_rank = _q_rank(reader)
    qk_dim = nope + rope
    bias = switch(reader, traits.qkv_bias)

    q_matrices = hidden * heads * qk_dim
    q_vectors = 0
    if q_rank is not None:
        q_matrices = hidden * q_rank + q_rank * heads * qk_dim
        q_vectors = q_rank + q_rank * bias
    kv_matrices = hidden * (kv_rank + rope) + kv_rank * heads * (nope + v_dim)
    kv_vectors = kv_rank + (kv_rank + rope) * bias
    matrices = q_matrices + kv_matrices + heads * v_dim * hidden
    return tuple(
        AttentionSpec(
            kind=one.kind,
            num_q_heads=heads,
            num_kv_heads=heads,
            qk_head_dim=qk_dim,
            v_head_dim=v_dim,
            parameters=matrices + q_vectors + kv_vectors + hidden * bias,
            matmul_parameters=matrices,
            window_tokens=one.window_tokens,
            kv_latent_dim=kv_rank + rope,
            q_latent_dim=q_rank,
        )
        for one in reach
    )


def _q_rank(reader: ConfigReader) -> int | None:
    if "q_lora_rank" in reader.config:
        return reader.optional_size("q_lora_rank")
    # A legal config may leave the queries uncompressed (null), so absence is a choice of the
    # family rather than a missing dimension; transformers compresses to 1536.
    reader.note(
        "q_lora_rank", "is absent: 1536 assumed, as in transformers; null for uncompressed queries"
    )
    return 1536
