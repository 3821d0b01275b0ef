"""Captions as Chameleon reads them: ids of the published tokeniser, framed by the ids that begin an image."""

from __future__ import annotations

from pathlib import Path

from lanternbench.models.chameleon.prompt_ids import PIXELS, anole_prompt, lumina_prompt, lumina_text
from lanternbench.models.chameleon.vocab import Vocabulary, special
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, encoded, framed


class ChameleonText(IdTokeniser):
    """No caption can write a special or an image token."""

    def __init__(self, path: Path, vocab: Vocabulary):
        """``path``: the tokeniser file that ``vocab`` was read from."""
        super().__init__(path)
        self.vocab = vocab
        self.reserved |= {self.names[name] for name in special(self.names)} | set(vocab.to_id.tolist())


def anole_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Anole's prompts.  Raises as ``framed``."""
    return framed(target, captions, [anole_prompt(ids, vocab) for ids in encoded(target, captions)], guided, vocab.pad)


def lumina_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Lumina-mGPT's prompts, the size ids of the target's grid included.  Raises as ``framed``."""
    height, width = (side * PIXELS for side in target.grid)
    texts = encoded(target, [lumina_text(caption, width, height) for caption in captions])
    prompts = [lumina_prompt(ids, width, height, vocab) for ids in texts]
    return framed(target, captions, prompts, guided, vocab.pad)
