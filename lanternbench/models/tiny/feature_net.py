"""The feature net behind FID-tiny: a small classifier of scene attributes, whose last hidden layer is the feature."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from lanternbench.models.tiny import clip as clip_tiny

FEATURES = 128
WIDTHS = (32, 64, 96, 96)


def _block(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU())


class FeatureNet(nn.Module):
    """uint8 images [B, 3, 64, 64] -> float64 features [B, 128], in the role that Inception's 2048 have in FID."""

    num_features = FEATURES  # the attribute by which torchmetrics sizes its statistics

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = WIDTHS
        self.body = nn.Sequential(_block(3, a, 2), _block(a, b, 2), _block(b, c, 2), _block(c, d, 1))
        # the 4×4 grid is kept up to the last layer: where things stand is a part of what a scene is
        self.feature = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * d, FEATURES), nn.GELU())

    def features(self, images: Tensor) -> Tensor:
        """float [B, 3, 64, 64] in −1…1 -> [B, 128]."""
        return self.feature(self.body(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.features(clip_tiny.to_float(images)).double()


def load(path: Path) -> tuple[FeatureNet, dict[str, Tensor]]:
    """The net in evaluation mode, and the reference statistics beside it.

    Statistics of real scenes: "total" [128] and "products" [128, 128], the float64 sums of features and of their outer
    products, and "count" [], the number of scenes.
    """
    tensors = load_file(path)
    reference = {k.removeprefix("reference."): tensors.pop(k) for k in list(tensors) if k.startswith("reference.")}
    net = FeatureNet()
    net.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    return net.eval().requires_grad_(False), reference
