"""The table of drafter kinds is what targets, files and trainings go by."""

from __future__ import annotations

import torch

from lanternbench.models.drafters.kinds import BY_RECIPE, FILED, KINDS, kind_of
from lanternbench.models.family import drafter_at, random_drafters
from lanternbench.training.drafter import TRAININGS
from lanternbench.utils.files import WEIGHTS


def test_the_bundled_target_has_the_kinds_that_the_table_says(target):
    bundled = {kind.name for kind in KINDS.values() if kind.is_bundled}
    assert bundled == set(target.drafters)


def test_every_kind_with_files_has_an_untrained_drafter_and_a_training(target):
    nets = random_drafters(target.model, "cpu", torch.float32)
    assert {name: net.kind for name, net in nets.items()} == {kind: kind for kind in FILED}
    assert set(TRAININGS) == set(FILED) == {kind.name for kind in BY_RECIPE.values()}


def test_a_file_is_of_the_kind_that_its_tensors_say(target):
    for kind in ("eagle", "eagle-3"):
        assert drafter_at(WEIGHTS / f"{kind}.safetensors", target.model, "cpu").kind == kind
    assert kind_of({"target_layers", "fc.weight"}).name == "dflash"
    assert kind_of({"fc.weight"}).name == "eagle"
