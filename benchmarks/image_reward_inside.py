"""The authors' ImageReward, run by ``benchmarks.image_reward_package`` in an environment of its own.

    python image_reward_inside.py make WEIGHTS VOCABULARY
    python image_reward_inside.py score WEIGHTS VOCABULARY < PICTURES > REWARDS

PICTURES: a JSON list of [path, caption]; REWARDS: a JSON list of numbers and the versions that gave
them.  ``make`` writes random weights at full size under the official names.  Nothing is downloaded:
the package's two files on the hub are BERT's vocabulary and this configuration.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

# med_config.json: BERT-base with cross-attention, and BLIP's two additional tokens
MED_CONFIG = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30524,
    "encoder_width": 768,
    "add_cross_attention": True,
}
PACKAGES = ("image-reward", "timm", "transformers", "torch")


def use_vocabulary(path: str) -> None:
    """Let the package's ``BertTokenizer.from_pretrained("bert-base-uncased")`` read this file."""

    def from_file(cls: type, *_: object, **__: object) -> object:
        return cls(path)

    transformers.BertTokenizer.from_pretrained = classmethod(from_file)  # type: ignore


def make(weights: str, config: str) -> None:
    """Write random weights that see image and caption, unlike those at the start of training."""
    from ImageReward.ImageReward import ImageReward

    torch.manual_seed(0)
    model = ImageReward(med_config=config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            inputs = parameter[0].numel()
            torch.nn.init.normal_(parameter, std=min(inputs, 1024) ** -0.5)
    torch.save(model.state_dict(), weights)


def score(weights: str, config: str, pictures: list[tuple[str, str]]) -> list[float]:
    import ImageReward

    model = ImageReward.load(weights, device="cpu", med_config=config)
    with torch.inference_mode():
        return [model.score(caption, path) for path, caption in pictures]


def main() -> None:
    what, weights, vocabulary = sys.argv[1:]
    use_vocabulary(vocabulary)
    answer: dict[str, Any] = {}
    # standard output is for the answer: the package prints there too
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        config = Path(folder) / "med_config.json"
        config.write_text(json.dumps(MED_CONFIG))
        if what == "make":
            make(weights, str(config))
        else:
            answer["rewards"] = score(weights, str(config), json.load(sys.stdin))
            answer["versions"] = {name: version(name) for name in PACKAGES}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
