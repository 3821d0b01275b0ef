"""The loop that one writes with transformers: a Llama of the same shape, a static cache, no
graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from lanternbench.models.transformer import DecoderConfig


@torch.inference_mode()
def plain_seconds(
    shape: DecoderConfig,
    guidance: float,
    prompt: int,
    steps: int,
    device: str,
    dtype: torch.dtype,
    wait: Callable[[], None],
    top_k: int = 1000,
) -> float:
    """Seconds a token of CFG sampling, one prompt; no value is brought to the host inside the
    loop.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.hidden,
        max_position_embeddings=prompt + steps + 8,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype).eval()  # type: ignore[arg-type]
    cache = StaticCache(config=config, max_cache_len=prompt + steps + 8)
    embedded = torch.randn(2, prompt, shape.dim, device=device, dtype=dtype)
    logits = model(inputs_embeds=embedded, past_key_values=cache, use_cache=True).logits[:, -1]
    for step in range(steps + 4):
        if step == 4:
            wait()
            clock = perf_counter()
        conditional, plain = logits.float()
        guided = plain + guidance * (conditional - plain)
        kept = guided.topk(min(top_k, len(guided)))
        token = kept.indices[torch.multinomial(kept.values.softmax(-1), 1)]
        logits = model(input_ids=token.expand(2, 1), past_key_values=cache, use_cache=True).logits[
            :, -1
        ]
    wait()
    return (perf_counter() - clock) / steps
