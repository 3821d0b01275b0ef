"""Procedural captioned scenes: what the embedded models are trained and judged on.

A scene is a textured background and one or two shapes.  Everything that the caption leaves open
(exact colour, stripe angle and phase, checker size, noise, a few pixels of position) is drawn at
random: that is where many image tokens are equally good, as they are in photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

SIZE = 64  # pixels a side
_SUPER = 2  # supersampling per axis

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.16, 0.16),
    "orange": (0.96, 0.56, 0.12),
    "yellow": (0.96, 0.88, 0.22),
    "green": (0.20, 0.66, 0.28),
    "blue": (0.18, 0.34, 0.86),
    "purple": (0.56, 0.22, 0.70),
    "white": (0.95, 0.95, 0.95),
    "black": (0.08, 0.08, 0.10),
}
TEXTURES = ("plain", "striped", "checkered", "noisy", "gradient")
SHAPES = ("circle", "square", "triangle", "star", "ring")
RADII = {"small": 0.14, "large": 0.23}  # of the image side
PLACES: dict[str, tuple[float, float]] = {  # (x, y) of the centre, in image sides
    "in the center": (0.50, 0.50),
    "on the left": (0.26, 0.50),
    "on the right": (0.74, 0.50),
    "at the top": (0.50, 0.26),
    "at the bottom": (0.50, 0.74),
    "at the top left": (0.27, 0.27),
    "at the top right": (0.73, 0.27),
    "at the bottom left": (0.27, 0.73),
    "at the bottom right": (0.73, 0.73),
}
_PAIRS = (
    ("on the left", "on the right"),
    ("at the top", "at the bottom"),
    ("at the top left", "at the bottom right"),
    ("at the bottom left", "at the top right"),
)


class Item(NamedTuple):
    """One shape of a scene."""

    shape: str
    colour: str
    size: str
    place: str

    def words(self) -> str:
        return f"{'an' if self.size[0] in 'aeiou' else 'a'} {self.size} {self.colour} {self.shape} {self.place}"


@dataclass(frozen=True)
class Scene:
    """What a caption says; pixels come from ``render``."""

    texture: str
    background: str
    items: tuple[Item, ...]

    def captions(self) -> tuple[str, ...]:
        """Every wording of this scene; the first one is canonical."""
        what = " and ".join(item.words() for item in self.items)
        ground = f"{self.texture} {self.background} background"
        return (f"{what} on a {ground}", f"a {ground} with {what}", f"{what}, {ground}")


def draw(rng: np.random.Generator) -> Scene:
    """A random scene: one shape (60 %) or two; a shape never has the background's colour."""

    def pick(values):
        return values[int(rng.integers(len(values)))]

    colours = list(COLOURS)
    background = pick(colours)
    others = [c for c in colours if c != background]
    if rng.random() < 0.6:
        places = (pick(list(PLACES)),)
    else:
        places = pick(_PAIRS)
    items = tuple(Item(pick(SHAPES), pick(others), pick(list(RADII)), place) for place in places)
    return Scene(pick(TEXTURES), background, items)


def _grid() -> tuple[np.ndarray, np.ndarray]:
    n = SIZE * _SUPER
    y, x = np.mgrid[0:n, 0:n].astype(np.float32)
    return (x + 0.5) / n, (y + 0.5) / n


_X, _Y = _grid()


def _ground(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """[n, n, 3] background in 0…1."""
    base = np.asarray(COLOURS[scene.background], np.float32)
    base = np.clip(base + rng.normal(0, 0.025, 3).astype(np.float32), 0, 1)
    # the second tone of a texture: towards black for light colours, towards white for dark ones
    other = base * 0.62 if base.mean() > 0.4 else base + (1 - base) * 0.38
    if scene.texture == "plain":
        mix = np.zeros_like(_X)
    elif scene.texture == "striped":
        angle, period = rng.choice([0.0, 0.25, 0.5, 0.75]) * np.pi, rng.choice([0.125, 0.1875])
        across = _X * np.cos(angle) + _Y * np.sin(angle)
        mix = ((across / period + rng.random()) % 1 < 0.5).astype(np.float32)
    elif scene.texture == "checkered":
        cell = rng.choice([0.125, 0.1875])
        mix = ((np.floor(_X / cell + rng.integers(2)) + np.floor(_Y / cell)) % 2).astype(
            np.float32
        )
    elif scene.texture == "noisy":
        cells = rng.random((16, 16)).astype(np.float32)
        mix = np.kron(cells, np.ones((_X.shape[0] // 16,) * 2, np.float32))
    else:
        angle = rng.choice(8) / 4 * np.pi
        along = (_X - 0.5) * np.cos(angle) + (_Y - 0.5) * np.sin(angle)
        mix = np.clip(0.5 + along, 0, 1).astype(np.float32)
    return base + mix[..., None] * (other - base)


def _mask(item: Item, rng: np.random.Generator) -> np.ndarray:
    """[n, n] coverage of one shape, before antialiasing."""
    cx, cy = np.asarray(PLACES[item.place]) + rng.uniform(-0.03, 0.03, 2)
    r = RADII[item.size] * rng.uniform(0.92, 1.08)
    x, y = (_X - cx) / r, (_Y - cy) / r
    if item.shape == "circle":
        return x * x + y * y < 1
    if item.shape == "ring":
        d = x * x + y * y
        return (d < 1) & (d > 0.3)
    if item.shape == "square":
        return np.maximum(abs(x), abs(y)) < 0.86
    if item.shape == "triangle":
        return (y < 0.8) & (abs(x) < (y + 1) / 1.8)
    angle = np.arctan2(x, -y)  # star: five points, upright
    spike = abs((angle / (2 * np.pi) * 5 + 0.5) % 1 - 0.5) * 2
    return np.hypot(x, y) < 1.1 - 0.65 * spike


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """The scene's pixels, uint8 [64, 64, 3]; ``rng`` fixes what the caption leaves open."""
    image = _ground(scene, rng)
    for item in scene.items:
        colour = np.asarray(COLOURS[item.colour], np.float32) + rng.normal(0, 0.02, 3).astype(
            np.float32
        )
        image = np.where(_mask(item, rng)[..., None], colour, image)
    image = image.reshape(SIZE, _SUPER, SIZE, _SUPER, 3).mean((1, 3))
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def sample(seed: int, index: int) -> tuple[np.ndarray, str, Scene]:
    """Scene number ``index`` of the endless data set ``seed``: (image, caption in a random
    wording, scene).
    """
    rng = np.random.default_rng([seed, index])
    scene = draw(rng)
    captions = scene.captions()
    return render(scene, rng), captions[int(rng.integers(len(captions)))], scene
