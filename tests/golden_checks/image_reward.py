"""ImageReward: image and caption preparation, both encoders, and the reward."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from golden_checks.common import IMAGE, Found, close, loaded, read, same
from lanternbench.metrics import blip_reward as ours
from lanternbench.metrics.clip import openai_pixels


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "image_reward.safetensors")
    vit, med, prompts = vectors.meta["vit"], vectors.meta["med_config"], vectors.meta["prompts"]
    vision = {
        "hidden_size": vit["embed_dim"],
        "intermediate_size": vit["embed_dim"] * vit["mlp_ratio"],
        "num_hidden_layers": vit["depth"],
        "num_attention_heads": vit["num_heads"],
    }
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    text = {name: med[name] for name in (*names, "max_position_embeddings")} | {
        "encoder_hidden_size": vit["embed_dim"]
    }
    model = loaded(ours.RewardModel(vision, text), ours.from_official(vectors.under("sd.")))
    images = [Image.fromarray(vectors[f"image{i}.uint8"].numpy()) for i in range(2)]
    pixels = torch.stack([openai_pixels()(image) for image in images])
    ids, mask = ours.tokenize(ours.tokenizer(vectors.meta["tokenizer_vocab"]), prompts)
    seen = model.vision(pixels).last_hidden_state
    captions = [(i.expand(2, -1), m.expand(2, -1)) for i, m in zip(ids, mask, strict=True)]
    read_captions = [
        model.text(i, attention_mask=m, encoder_hidden_states=seen) for i, m in captions
    ]
    states = torch.stack([out.last_hidden_state for out in read_captions])
    reward = torch.stack([model(pixels, i, m) for i, m in captions])
    return [
        close("prepared images", pixels, vectors["preprocessed"]),
        same("caption ids", ids, vectors["prompt_ids"]),
        same("caption mask", mask, vectors["prompt_attention_mask"]),
        close("image tokens", seen[:, :8], vectors["vit_output_first8"]),
        close("image tokens, mean", seen.mean(1), vectors["vit_output_mean_over_tokens"]),
        close("caption states", states[0, :1], vectors["text_encoder_output_prompt0_image0"]),
        close("[CLS] states", states[:, :, 0], vectors["cls_feature"]),
        close("reward", reward, vectors["reward"], IMAGE),
        close("reward, by the package's score()", reward, vectors["score_api"], IMAGE),
    ]
