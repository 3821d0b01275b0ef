"""ImageReward (arXiv 2304.05977): a z-score of human preference, about −2…2, from the official files."""

from __future__ import annotations

from lanternbench.metrics import files
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.registry import register

IMAGE_REWARD = files.Weights(
    name="image-reward",
    title="ImageReward",
    file="ImageReward.pt",
    gigabytes=1.8,
    url="https://huggingface.co/THUDM/ImageReward/resolve/main/ImageReward.pt",
    sha256="",
    elsewhere=("~/.cache/ImageReward/ImageReward.pt",),
    hub=("THUDM/ImageReward", "ImageReward.pt"),
)
BERT_VOCABULARY = files.Weights(
    name="bert-vocabulary",
    title="the vocabulary of BERT (uncased)",
    file="bert-base-uncased-vocab.txt",
    gigabytes=0.0003,
    url="https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
    sha256="",
    hub=("google-bert/bert-base-uncased", "vocab.txt"),
)


@register("metric", "image-reward")
class ImageReward(ImageMetric):
    """``ImageReward.pt`` in transformers' BLIP parts."""

    paper = "Xu et al. 2023, arXiv 2304.05977"
    title, weights = "ImageReward", (IMAGE_REWARD, BERT_VOCABULARY)

    def load(self) -> ScoreFunction:
        from lanternbench.metrics import blip_reward

        here, words = (self.setup.find(w) for w in self.weights)
        model = blip_reward.load(here, words) if here and words else blip_reward.untrained()
        return blip_reward.score_function(*model, self.setup.device)
