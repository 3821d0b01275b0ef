"""The loop that one writes with transformers: a Llama of the same shape, a static cache, no
graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from lanternbench.models.target import Target

WARMUP = 4  # steps


@torch.inference_mode()
def plain_seconds(
    target: Target, prompt: int, steps: int, wait: Callable[[], None], top_k: int = 1000
) -> float:
    """Return the seconds a token of CFG sampling, one prompt; no value is brought to the host
    inside the loop.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    shape = target.model.config.decoder
    positions = prompt + steps + 2 * WARMUP
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.hidden,
        max_position_embeddings=positions,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )
    with target.device:
        model = LlamaForCausalLM(config).to(target.dtype).eval()  # type: ignore[arg-type]
    cache = StaticCache(config=config, max_cache_len=positions)
    embeddings = torch.randn(2, prompt, shape.dim, device=target.device, dtype=target.dtype)
    logits = model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True).logits
    for step in range(steps + WARMUP):
        if step == WARMUP:
            wait()
            began = perf_counter()
        conditional, unconditional = logits[:, -1].float()
        guided = unconditional + target.sampling.guidance * (conditional - unconditional)
        kept = guided.topk(min(top_k, len(guided)))
        token = kept.indices[torch.multinomial(kept.values.softmax(-1), 1)]
        logits = model(input_ids=token.expand(2, 1), past_key_values=cache, use_cache=True).logits
    wait()
    return (perf_counter() - began) / steps
