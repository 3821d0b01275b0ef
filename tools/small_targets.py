"""Small random checkpoints with the published key names and files of every family, as the hub's
repositories have them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Emu3VQVAEConfig

from lanternbench.models.chameleon import checkpoint as chameleon
from lanternbench.models.chameleon.checkpoint import Chameleon, ChameleonConfig
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.emu3 import checkpoint as emu3
from lanternbench.models.emu3 import tiktoken
from lanternbench.models.emu3.checkpoint import Emu3, Emu3Config
from lanternbench.models.entries import Entry, catalogue
from lanternbench.models.glm_image import checkpoint as glm
from lanternbench.models.glm_image.checkpoint import GlmImage, GlmImageConfig
from lanternbench.models.janus import checkpoint as janus
from lanternbench.models.janus.checkpoint import Janus, JanusConfig
from lanternbench.models.key_names import to_published
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig, to_official
from lanternbench.models.lumina2 import checkpoint as lumina2
from lanternbench.models.movq import MoVQ, VideoMoVQ
from lanternbench.models.places import Source
from lanternbench.models.vq import VQConfig, VQModel

State = dict[str, Tensor]
CODES = 16
VQ = VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=CODES, codebook_dim=8, attention=False)
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
DECODER: dict[str, Any] = {"dim": 32, "n_layer": 2, "n_head": 2, "hidden": 48, "grid": 4}
WORDS = ["<unk>", "a", "red", "circle", "4", "*", ":"]
LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
LLAMAGEN: dict[str, Any] = {
    "dim": 32,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": CODES,
    "grid": 4,
    "multiple_of": 16,
    "caption_dim": 16,
    "cls_token_num": 8,
    "vq": asdict(VQ),
}
EMU3_VQ: dict[str, Any] = {
    "base_channels": 32,
    "channel_multiplier": [1],
    "num_res_blocks": 1,
    "attn_resolutions": [1],
    "codebook_size": CODES,
    "hidden_size": 32,
}
MOVQ: dict[str, Any] = {
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
    "attn_resolutions": [1],
    "codebook_size": CODES,
    "hidden_size": 32,
}


@dataclass(frozen=True, eq=False)
class World:
    """A target of the catalogue at a small size, and who writes its repositories.

    ``role``: the part that is loaded by itself, a drafter.  ``sources``: files by role where they
    are not those that the catalogue names.
    """

    title: str
    name: str
    shape: Mapping[str, Any]
    write_files: Callable[[Path, Entry], Any]
    role: str | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)

    @property
    def row(self) -> Entry:
        return catalogue()[self.name].model_copy(update={"shape": dict(self.shape)})

    @property
    def published(self) -> Mapping[str, Source]:
        return self.sources or self.row.files

    @property
    def repository(self) -> str:
        return self.published[self.role or "model"].repo

    def write(self, hub: Path) -> Any:
        """Write the repositories under ``hub``; return what a drafter drafts for."""
        torch.manual_seed(0)
        return self.write_files(hub, self.row)


@contextmanager
def small_rows(world: World) -> Iterator[None]:
    """Within it the catalogue has the small shape, and the merge table of Emu3 is that of bytes."""
    first_image_id = 256 + len(tiktoken.SPECIAL)
    with (
        mock.patch.dict(catalogue(), {world.name: world.row}),
        mock.patch.object(chameleon, "VQ", VQ),  # of params.json, which has no sizes of it
        mock.patch.object(tiktoken, "MERGED", 256),
        mock.patch.object(emu3, "FIRST_IMAGE_ID", first_image_id),
    ):
        yield


# ---- files ----


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_words(path: Path, special: list[str]) -> dict[str, int]:
    """Write a tokenizer.json of words; return the id of each."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    ids = {word: number for number, word in enumerate([*WORDS, *special])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    added = [AddedToken(name, special=True, normalized=False) for name in special]
    tokenizer.add_special_tokens(added)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return ids


def write_shards(folder: Path, state: State, count: int = 2) -> None:
    """Write safetensors shards and their index, as the hub's libraries do."""
    folder.mkdir(parents=True, exist_ok=True)
    where = {}
    for number, name in enumerate(sorted(state)):
        where[name] = f"model-{number % count + 1:05d}-of-{count:05d}.safetensors"
    for file in sorted(set(where.values())):
        part = {name: value for name, value in state.items() if where[name] == file}
        save_file({name: value.contiguous() for name, value in part.items()}, folder / file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": where})


def save_tensors(path: Path, state: State) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)


def save(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def hugging_face(state: State, prefix: str) -> State:
    """Return the state of a decoder with one table of all ids under transformers' names."""
    head = state["output.weight"]
    others = {name: value for name, value in state.items() if name != "output.weight"}
    named = {f"{prefix}{name}": value for name, value in to_published(others).items()}
    return named | {"lm_head.weight": head}


def write_drafter(hub: Path, source: Source, config: Any) -> None:
    """Write an EAGLE drafter as LANTERN publishes them."""
    folder = hub / source.repo
    state = to_published(Eagle(config).state_dict())
    if "pytorch_model.bin" in source.files:
        save(folder / "pytorch_model.bin", state)
    else:
        write_shards(folder, state, 1)
    write_json(folder / "config.json", {"num_attention_heads": config.n_head})


# ---- the families ----


def llamagen(hub: Path, row: Entry) -> LlamaGen:
    shape = {name: value for name, value in row.shape.items() if name != "vq"}
    net = LlamaGen(LlamaGenConfig(**shape))
    model, vq = row.files["model"], row.files["vq"]
    state = to_official(net.state_dict())
    save(hub / model.repo / model.files[0], {"model": state, "steps": 5})
    save(hub / vq.repo / vq.files[0], {"model": VQModel(VQ).state_dict()})
    if "text" in row.files:
        text = hub / row.files["text"].repo
        write_shards(text, {"shared.weight": torch.ones(2, 2), "encoder.weight": torch.ones(2)})
        write_json(text / "config.json", {"model_type": "t5"})
    if "eagle" in row.files:
        write_drafter(hub, row.files["eagle"], net.eagle_config)
    return net


def chameleon_words(path: Path) -> dict[str, int]:
    images = [f"IMGIMG{str(code).translate(LETTERS)}Z" for code in range(CODES)]
    return write_words(path, [*chameleon.SPECIAL, *images])


def chameleon_vq(path: Path) -> None:
    state = VQModel(VQ, comparison="distance").state_dict()
    save(path, {"state_dict": state, "global_step": 1})


def chameleon_config(vocabulary: int) -> dict[str, Any]:
    vq = {
        "ch": 32,
        "ch_mult": [1, 2],
        "num_res_blocks": 1,
        "z_channels": 16,
        "n_embed": CODES,
        "embed_dim": 8,
    }
    config = {"model_type": "chameleon", "vocab_size": vocabulary, "vq_config": vq}
    return LLAMA | config


def new_chameleon(vocabulary: int) -> Chameleon:
    return Chameleon(ChameleonConfig(32, 2, 2, 48, vocab_size=vocabulary, grid=(4, 4)))


def chameleon_conversion(hub: Path, row: Entry) -> Chameleon:
    """Anole's and Lumina-mGPT's conversions, with Meta's image tokeniser in another repository."""
    model = hub / row.files["model"].repo
    words = row.files.get("tokenizer", row.files["model"])
    vocabulary = len(chameleon_words(hub / words.repo / "tokenizer.json"))
    net = new_chameleon(vocabulary)
    write_shards(model, hugging_face(net.state_dict(), "model."))
    write_json(model / "config.json", chameleon_config(vocabulary))
    chameleon_vq(hub / row.files["vq"].repo / row.files["vq"].files[0])
    if "eagle" in row.files:
        write_drafter(hub, row.files["eagle"], net.eagle_config)
    return net


def chameleon_release(hub: Path, row: Entry) -> Chameleon:
    """Anole's own release, in Meta's layout."""
    root = hub / row.files["vq"].repo
    vocabulary = len(chameleon_words(root / "tokenizer" / "text_tokenizer.json"))
    net = new_chameleon(vocabulary)
    model = {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "multiple_of": 16,
        "ffn_dim_multiplier": 0.5,
    }
    write_json(root / "models" / "7b" / "params.json", {"model": model})
    state = {
        name.replace("_norm.", "_normalization.") if "_norm." in name else name: value
        for name, value in split_official(net.state_dict()).items()
    }
    save(root / "models" / "7b" / "consolidated.pth", state)
    chameleon_vq(root / row.files["vq"].files[0])
    return net


def lumina2_release(hub: Path, row: Entry) -> Chameleon:
    model = hub / row.files["model"].repo
    size = lumina2.size_name(8 * row.shape["grid"])
    codes = [f"{lumina2.CODE}{code}>" for code in range(CODES)]
    special = [*lumina2.SPECIAL, size, *codes]
    vocabulary = len(write_words(model / "tokenizer.json", special))
    write_json(model / "tokenizer_config.json", {"eos_token": lumina2.BOS})
    net = new_chameleon(vocabulary)
    write_shards(model, hugging_face(net.state_dict(), "model."))
    config = LLAMA | {"model_type": "chameleon", "vocab_size": vocabulary}
    write_json(model / "config.json", config)
    vq = row.files["vq"]
    tokeniser = MoVQ(Emu3VQVAEConfig(**lumina2.VQ | MOVQ))
    save(hub / vq.repo / vq.files[0], tokeniser.state_dict())
    return net


def split_official(state: State) -> State:
    from lanternbench.models.key_names import OFFICIAL, split

    return split(state, OFFICIAL)


def janus_release(hub: Path, row: Entry) -> Janus:
    model = hub / row.files["model"].repo
    special = [janus.BOS, janus.PAD, janus.IMAGE_START]
    vocabulary = len(write_words(model / "tokenizer.json", special))
    config = JanusConfig(
        **{**DECODER, "grid": (4, 4)}, vocab_size=CODES, prompt_ids=vocabulary, code_dim=8
    )
    state: State = {}
    for name, value in to_published(Janus(config).state_dict()).items():
        theirs = f"model.language_model.{name}"
        for ours, (_, prefix) in janus._IMAGES.items():
            if name.startswith(ours):
                theirs = prefix + name.removeprefix(ours)
        state[theirs.replace("cls_embedding", "embed_tokens")] = value
    vq = VQModel(VQ).state_dict()
    state |= {f"model.vqmodel.{name}": value for name, value in vq.items()}
    write_shards(model, state)
    described = {
        "model_type": "janus",
        "text_config": LLAMA | {"vocab_size": vocabulary},
        "vision_config": {"image_size": 64},
        "vq_config": {"num_embeddings": CODES, "embed_dim": 8},
    }
    write_json(model / "config.json", described)
    return Janus(config)


def emu3_vq(prefix: str = "") -> State:
    state = VideoMoVQ(Emu3VQVAEConfig(**EMU3_VQ)).state_dict()
    return {f"{prefix}{name}": value for name, value in state.items()}


def emu3_conversion(hub: Path, row: Entry) -> Emu3:
    model = hub / row.files["model"].repo
    images = [f"<|visual token {code:06d}|>" for code in range(CODES)]
    vocabulary = len(write_words(model / "tokenizer.json", [*emu3.PUBLISHED, *images]))
    net = Emu3(Emu3Config(**DECODER, n_kv_head=2, vocab_size=vocabulary))
    state = hugging_face(net.state_dict(), "model.text_model.")
    write_shards(model, state | emu3_vq("model.vqmodel."))
    text = LLAMA | {"vocab_size": vocabulary}
    write_json(model / "config.json", {"model_type": "emu3", "text_config": text})
    return net


def emu3_decoder(model: Path, **shape: Any) -> Emu3:
    """Write a decoder in the layout of both original releases, with the merge table of bytes."""
    table = [base64.b64encode(bytes([byte])).decode() + f" {byte}" for byte in range(256)]
    vocabulary = 256 + len(tiktoken.SPECIAL) + CODES
    net = Emu3(Emu3Config(**DECODER, n_kv_head=2, vocab_size=vocabulary, **shape))
    write_shards(model, hugging_face(net.state_dict(), "model."))
    write_json(model / "config.json", LLAMA | {"model_type": "Emu3", "vocab_size": vocabulary})
    (model / "emu3.tiktoken").write_text("\n".join(table))
    return net


def emu3_release(hub: Path, row: Entry) -> Emu3:
    save_tensors(hub / EMU3_RELEASED_VQ.repo / "model.safetensors", emu3_vq())
    return emu3_decoder(hub / EMU3_RELEASED.repo)


def emu35_release(hub: Path, row: Entry) -> Emu3:
    vq = hub / row.files["vq"].repo
    save_tensors(vq / "model.safetensors", VQModel(VQ).state_dict())
    write_json(vq / "config.json", {"model_type": "Emu3p5VisionVQ", "codebook_size": CODES})
    return emu3_decoder(hub / row.files["model"].repo, qk_norm="rms")


def glm_release(hub: Path, row: Entry) -> GlmImage:
    root = hub / row.files["model"].repo
    weights, processor = root / "vision_language_encoder", root / "processor"
    codes = [f"<|dit_token_{code}|>" for code in range(CODES)]
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    ids = {word: number for number, word in enumerate([*codes, *WORDS, *glm.SIZE])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    added = [AddedToken(name, special=True, normalized=False) for name in glm.SIZE]
    tokenizer.add_special_tokens(added)
    processor.mkdir(parents=True)
    tokenizer.save(str(processor / "tokenizer.json"))
    rope = {"partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}
    text = LLAMA | {"vocab_size": len(ids), "rope_parameters": rope}
    images = {"num_embeddings": CODES}
    described = {"model_type": "glm_image", "text_config": text, "vq_config": images}
    write_json(weights / "config.json", described | {"image_start_token_id": CODES})
    config = GlmImageConfig(
        **DECODER,
        n_kv_head=2,
        vocab_size=len(ids),
        prompt_ids=0,
        rotary_width=8,
        sections=(1, 2, 1),
    )
    net = GlmImage(config)
    write_shards(weights, hugging_face(net.state_dict(), "model.language_model."))
    return net


META = Source(repo="GAIR/Anole-7b-v0.1", files=("models/7b/*",))
META_WORDS = Source(repo="GAIR/Anole-7b-v0.1", files=("tokenizer/text_tokenizer.json",))
META_VQ = Source(repo="GAIR/Anole-7b-v0.1", files=("tokenizer/vqgan.ckpt",))
EMU3_RELEASED = Source(
    repo="BAAI/Emu3-Gen", files=("config.json", "emu3.tiktoken", "model*.safetensors*")
)
EMU3_RELEASED_VQ = Source(repo="BAAI/Emu3-VisionTokenizer", files=("model.safetensors",))
IMAGES: dict[str, Any] = {"grid": 4, "vq": asdict(VQ)}
LUMINA2: dict[str, Any] = {
    "grid": 4,
    "vocab_size": CODES,
    "first_image_id": len(WORDS) + len(lumina2.SPECIAL) + 1,  # after the token of the size
    "vq": MOVQ,
}
WORLDS = (
    World("LlamaGen t2i", "llamagen-xl-stage1", LLAMAGEN, llamagen),
    World("LlamaGen c2i", "llamagen-b-c2i", LLAMAGEN | {"model_type": "c2i"}, llamagen),
    World("Anole", "anole-7b", IMAGES, chameleon_conversion),
    World(
        "Anole, Meta's files",
        "anole-7b",
        IMAGES,
        chameleon_release,
        sources={"model": META, "tokenizer": META_WORDS, "vq": META_VQ},
    ),
    World(
        "Lumina-mGPT 1024",
        "lumina-mgpt-7b-1024",
        IMAGES | {"dialect": "anole"},  # whose prompts need no ids of sizes
        chameleon_conversion,
    ),
    World("Lumina-mGPT 2.0", "lumina-mgpt-2", LUMINA2, lumina2_release),
    World("Janus-Pro", "janus-pro-1b", IMAGES, janus_release),
    World("Emu3", "emu3-gen", {"grid": 4, "vq": EMU3_VQ}, emu3_conversion),
    World(
        "Emu3, original release",
        "emu3-gen",
        {"grid": 4, "vq": EMU3_VQ},
        emu3_release,
        sources={"model": EMU3_RELEASED, "vq": EMU3_RELEASED_VQ},
    ),
    World(
        "Emu3.5",
        "emu3.5-image",
        IMAGES | {"dialect": "emu3.5", "qk_norm": "rms"},
        emu35_release,
    ),
    World("GLM-Image", "glm-image", {"grid": 4}, glm_release),
    World("EAGLE drafter", "llamagen-xl-stage1", LLAMAGEN, llamagen, role="eagle"),
)
