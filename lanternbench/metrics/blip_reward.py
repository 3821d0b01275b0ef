"""The network of ImageReward: BLIP reads the caption with the image before it, a small head gives
the reward.

The networks are transformers' BLIP parts, the weights the official ``ImageReward.pt``: the package
of the authors imports with no current transformers or timm.  Reproduces that package on its test
vectors (``tests/golden.py``).
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import BertTokenizer, BlipTextConfig, BlipVisionConfig, BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextModel

from lanternbench.metrics import files
from lanternbench.metrics.clip import openai_pixels
from lanternbench.metrics.metric import ScoreFunction

# of the raw reward over the authors' data: they make it a z-score
MEAN = 0.16717362830052426
STD = 1.0333394966054072
CAPTION = 35  # tokens; longer captions are cut
VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
TEXT = {
    "vocab_size": 30524,
    "num_attention_heads": 12,
    "encoder_hidden_size": VISION["hidden_size"],
}
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_RENAMED = [  # official -> transformers
    (r"^blip\.visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
    (r"^blip\.visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
    (r"^blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"^blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
    (
        r"^blip\.visual_encoder\.blocks\.(\d+)\.norm([12])\.",
        r"vision.encoder.layers.\1.layer_norm\2.",
    ),
    (
        r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.",
        r"vision.encoder.layers.\1.self_attn.qkv.",
    ),
    (
        r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.",
        r"vision.encoder.layers.\1.self_attn.projection.",
    ),
    (r"^blip\.visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
    (r"^blip\.text_encoder\.", "text."),
    (r"^mlp\.layers\.", "head."),
]
_UNUSED = re.compile(r"(^blip\.(vision|text)_proj\.)|(\.position_ids$)")


class RewardModel(nn.Module):
    """ViT over the image, BERT over the caption with cross-attention to the image, a linear head
    on [CLS].
    """

    def __init__(self, vision: Mapping[str, int] = VISION, text: Mapping[str, int] = TEXT):
        super().__init__()
        self.vision = BlipVisionModel(
            BlipVisionConfig.from_dict({"image_size": 224, "layer_norm_eps": 1e-6, **vision})
        )
        self.text = BlipTextModel(BlipTextConfig.from_dict({**text}), add_pooling_layer=False)
        self.head = files.linear_head(self.text.config.hidden_size)

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Pixels [B, 3, 224, 224], caption ids and mask [B, 35] -> rewards [B], standardised."""
        seen = self.vision(pixels).last_hidden_state
        states = self.text(ids, attention_mask=mask, encoder_hidden_states=seen).last_hidden_state
        return (self.head(states[:, 0]).squeeze(-1) - MEAN) / STD


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keys of ``ImageReward.pt`` -> keys of ``RewardModel``."""
    renamed = {}
    for key, tensor in state.items():
        if not _UNUSED.search(key):
            for pattern, name in _RENAMED:
                key = re.sub(pattern, name, key)
            renamed[key] = tensor.float()
    return renamed


def tokenizer(tokens: list[str]) -> BertTokenizer:
    """BERT's tokenizer over a vocabulary, with BLIP's two additional tokens."""
    bert = BertTokenizer(vocab={token: i for i, token in enumerate(tokens)})
    bert.add_tokens(["[DEC]", "[ENC]"], special_tokens=True)
    return bert


def tokenize(bert: BertTokenizer, captions: list[str]) -> tuple[Tensor, Tensor]:
    """Captions -> ids and mask, int64 [B, 35]; half a surrogate pair counts as "?"."""
    clean = [caption.encode("utf-8", "replace").decode() for caption in captions]
    inputs = bert(
        clean, padding="max_length", truncation=True, max_length=CAPTION, return_tensors="pt"
    )
    return inputs["input_ids"], inputs["attention_mask"]


def vocabulary_tokens(path: Path | None) -> list[str]:
    """The lines of BERT's vocab.txt; single characters without it.  Raises UserError for another
    or a damaged file.
    """
    count = TEXT["vocab_size"] - 2  # BLIP's two additional tokens
    if path is None:
        chars = [chr(n) for n in range(33, 33 + (count - len(MARKS)) // 2)]
        return [*MARKS, *chars, *(f"##{c}" for c in chars)]
    with files.reading(path, "BERT vocabulary"):
        # a token may be another line separator
        tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        if len(tokens) != count or not set(MARKS) <= set(tokens):
            raise ValueError(f"it has {len(tokens)} lines, not {count} with BERT's marks")
    return tokens


def score_function(path: Path | None, bert: BertTokenizer, device: str) -> ScoreFunction:
    """Images and captions -> rewards; random weights without files.  Raises UserError for another
    or damaged one.
    """
    pixels = openai_pixels()
    with files.seeded():
        model = RewardModel()
    files.filled(
        model, path, "ImageReward", device, lambda *file: from_official(files.tensors(*file))
    )

    def score(images: list[Image.Image], captions: list[str]) -> Tensor:
        prepared = torch.stack([pixels(image) for image in images])
        ids, mask = tokenize(bert, captions)
        return model(prepared.to(device), ids.to(device), mask.to(device))

    return score
