"""Methods as data: every method is proposal × tree × acceptance × residual; a named method is a preset of the four."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lanternbench.errors import UserError
from lanternbench.methods.acceptance import RESIDUALS

Depth: TypeAlias = Annotated[int, Field(ge=0, le=64)]
Width: TypeAlias = Annotated[int, Field(ge=1, le=1024)]


class Method(BaseModel):
    """One decoder, fully specified.  Unset options take the target's defaults when the decoder is built."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    preset: str
    proposal: Literal["none", "eagle", "model", "medusa", "jacobi"]
    tree: Literal["none", "chain", "static", "dynamic", "adaptive"]
    acceptance: str
    residual: str
    # trees
    shape: str | list[list[int]] | None = Field(None, description="static tree: chain-N, a name, or a list of paths")
    depth: int | None = Field(None, ge=0, le=64, description="levels of a chain or dynamic tree")
    draft_top_k: int | None = Field(None, ge=1, le=1024, description="children per expanded node of a dynamic tree")
    total_nodes: int | None = Field(None, ge=2, le=1024, description="nodes of a dynamic tree, the root included")
    init: str | None = Field(None, description="start of an ADT-Tree (adaptive.INITS), of SJD's window (jacobi.INITS)")
    beta: float = Field(1.0, gt=0, description="ADT-Tree: acceptance level that deepens the tree")
    l_d: int = Field(1, ge=0, description="ADT-Tree: step of the depth")
    l_k: int | None = Field(None, ge=0, description="ADT-Tree: step of the width")
    depth_range: tuple[Depth, Depth] = (0, 10)
    width_range: tuple[Width, Width] | None = None
    fixed_depth: int | None = Field(None, ge=1, le=64, description="ADT-Tree ablation: adapt the width alone")
    fixed_width: int | None = Field(None, ge=1, le=1024, description="ADT-Tree ablation: adapt the depth alone")
    window: int = Field(16, ge=1, le=256, description="SJD and Jacobi: drafted tokens per step")
    # acceptance
    lam: float | None = Field(
        None, alias="lambda", le=1000, allow_inf_nan=False, description="relaxation λ of lantern++ and annealed rules"
    )
    schedule: Literal["exp", "linear", "uniform"] = "exp"
    nu: float = Field(0.7, gt=0, le=1, description="Cool-SD: decay ν of the exp schedule")
    k: int | None = Field(None, ge=1, description="LANTERN: neighbours of a token, itself included")
    delta: float | None = Field(None, gt=0, le=1, description="LANTERN: bound δ")
    epsilon: float = Field(0.09, gt=0, lt=1, description="Medusa's typical acceptance: threshold ε")
    proximity: Literal["l2", "cosine", "random"] = "l2"
    divergence: Literal["tvd", "jsd"] = "tvd"
    variant: Literal["paper", "reference"] = "paper"

    @property
    def lossless(self) -> bool:
        """Is it one of ours that keeps the target's distribution?  What is registered is judged by ``verify``."""
        return self.acceptance in ("exact", "unchanged") and self.residual in RESIDUALS

    @property
    def options(self) -> dict[str, Any]:
        """The relaxation that is set, and what differs from the preset, by name."""
        base = preset(self.preset)
        shown = _OF_RULE if self.acceptance != base.acceptance else _KNOBS

        def says(name: str, value: Any) -> bool:
            if name in _OF_RULE and value is None:
                return False
            return name != "preset" and (name in shown or value != getattr(base, name))

        return {name: value for name in type(self).model_fields if says(name, value := getattr(self, name))}

    @property
    def label(self) -> str:
        """A unique short name: the preset, another rule if one was put on it, and its options."""
        shown = self.options
        name = self.preset
        if "acceptance" in shown:
            name += f"+{shown.pop('acceptance')}"
            if shown.get("residual") == _usual(self.acceptance)["residual"]:
                del shown["residual"]
        return " ".join([name, *(f"{_SYMBOLS.get(k, k)}={_compact(v)}" for k, v in shown.items())])


_KNOBS = ("lam", "delta")
_OF_RULE = ("lam", "delta", "k")  # what goes with a rule that is replaced
_CHOICES = {"proposal", "tree", "acceptance", "residual"}
_READ_BY = {
    "exact": set[str](),
    "unchanged": set[str](),
    "annealed": {"lam", "schedule", "nu"},
    "lantern": {"k", "delta", "proximity", "divergence"},
    "lantern++": {"k", "lam", "proximity"},
    "typical": {"epsilon"},
}
_SYMBOLS = {"lam": "λ", "delta": "δ", "nu": "ν", "beta": "β", "epsilon": "ε"}


def _compact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ",".join(".".join(map(str, path)) for path in value) + "]"
    return str(value).replace(" ", "")


_PAPERS = {
    "ar": "–",
    "sd": "Leviathan et al. 2023, arXiv 2211.17192",
    "medusa": "Cai et al. 2024, arXiv 2401.10774",
    "eagle-1": "Li et al. 2024, arXiv 2401.15077",
    "eagle-2": "Li et al. 2024, arXiv 2406.16858",
    "lantern": "Jang et al. 2024, arXiv 2410.03355",
    "lantern++": "Park et al. 2025, arXiv 2502.06352",
    "jacobi": "Song et al. 2021, arXiv 2002.03629",
    "sjd": "Teng et al. 2024, arXiv 2410.01699",
    "adt-tree": "ADT-Tree 2025, arXiv 2512.21857",
    "uniform-rsd": "Cool-SD 2026, arXiv 2601.09212",
    "cool-sd": "Cool-SD 2026, arXiv 2601.09212",
}

PRESETS: dict[str, dict[str, Any]] = {
    "ar": dict(proposal="none", tree="none", acceptance="exact", residual="standard"),
    "sd": dict(proposal="model", tree="chain", acceptance="exact", residual="standard"),
    "medusa": dict(proposal="medusa", tree="static", acceptance="exact", residual="standard"),
    "eagle-1": dict(proposal="eagle", tree="static", acceptance="exact", residual="standard"),
    "eagle-2": dict(proposal="eagle", tree="dynamic", acceptance="exact", residual="standard"),
    "lantern": dict(proposal="eagle", tree="dynamic", acceptance="lantern", residual="lantern", delta=0.1),
    "lantern++": dict(proposal="eagle", tree="static", acceptance="lantern++", residual="lantern", lam=2.0, k=10),
    "jacobi": dict(proposal="jacobi", tree="chain", acceptance="unchanged", residual="standard", init="random"),
    "sjd": dict(proposal="jacobi", tree="chain", acceptance="exact", residual="standard", init="random"),
    "adt-tree": dict(proposal="eagle", tree="adaptive", acceptance="exact", residual="standard", init="horizontal"),
    "uniform-rsd": dict(
        proposal="eagle", tree="static", acceptance="annealed", residual="optimal", lam=2.0, schedule="uniform"
    ),
    "cool-sd": dict(proposal="eagle", tree="static", acceptance="annealed", residual="optimal", lam=2.0),
}


def preset(name: str) -> Method:
    """The preset called ``name``.  Raises UserError naming the presets there are."""
    from lanternbench.methods import registry

    presets = PRESETS | registry.presets()
    if name not in presets:
        raise UserError(f"unknown method '{name}': choose one of {', '.join(presets)}")
    try:
        return Method(preset=name, **presets[name])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its choices"
        raise UserError(f"the registered method '{name}' is wrong: {where}: {first['msg']}") from None


def paper(name: str) -> str:
    return _PAPERS.get(name, "")


def method(name: str, **options: Any) -> Method:
    """A preset with some of its choices and options replaced.

    Raises UserError for an unknown method or option, a value out of range, and a combination that cannot be run.
    """
    base = preset(name)
    given = {("lam" if k == "lambda" else k.replace("-", "_")): v for k, v in options.items() if v is not None}
    unknown = sorted(set(given) - set(Method.model_fields) | ({"preset"} & set(given)))
    if unknown:
        raise UserError(f"method '{name}' has no option '{unknown[0]}': `lanternbench methods` lists the options")
    asked = set(given)
    if "acceptance" in given and given["acceptance"] != base.acceptance:
        given = _usual(given["acceptance"]) | given
    if given.get("tree") == "chain" and "shape" not in given:
        given["shape"] = None
    try:
        made = Method(**{**base.model_dump(by_alias=False), **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = "lambda" if first["loc"] and first["loc"][0] == "lam" else ".".join(map(str, first["loc"][:1]))
        raise UserError(f"method '{name}': option '{where}' = {first['input']!r} is wrong: {first['msg']}") from None
    check(made)
    if idle := sorted(asked - reads(made) - _CHOICES):
        read = ", ".join(sorted(reads(made) - {"variant"})).replace("lam", "lambda") or "none"
        option = idle[0].replace("lam", "lambda")
        raise UserError(f"method '{made.label}' does not read the option '{option}' (it reads: {read}): leave it away")
    return made


def reads(m: Method) -> set[str]:
    """The options that make a difference to ``m``; a registered rule may read any that rules have."""
    found = {"variant"}
    if m.tree in ("chain", "static") and m.proposal != "jacobi":
        found |= {"shape", "depth"}
    if m.tree in ("dynamic", "adaptive"):
        found |= {"depth", "draft_top_k", "total_nodes"}
    if m.tree == "adaptive":
        found |= {"init", "beta", "l_d", "l_k", "depth_range", "width_range", "fixed_depth", "fixed_width"}
    if m.proposal == "jacobi":
        found |= {"window", "init"}
    found |= _READ_BY.get(m.acceptance, {name for names in _READ_BY.values() for name in names})
    return found - {"nu"} if m.acceptance == "annealed" and m.schedule != "exp" else found


def _usual(acceptance: str) -> dict[str, Any]:
    """The residual and relaxation that come with a rule: those of the first preset that has it."""
    first = next((choices for choices in PRESETS.values() if choices["acceptance"] == acceptance), {})
    return {"residual": first.get("residual", "standard")} | {name: first.get(name) for name in _OF_RULE}


def check(m: Method) -> None:
    """Raise UserError for options out of range and for combinations that cannot be run, with the reason."""
    from lanternbench.methods import registry
    from lanternbench.methods.proposals import jacobi
    from lanternbench.methods.trees import adaptive

    def refuse(reason: str) -> None:
        raise UserError(f"method '{m.label}' cannot be run: {reason}")

    if m.acceptance not in registry.acceptances():
        refuse(f"no acceptance rule is called '{m.acceptance}'; choose one of {', '.join(registry.acceptances())}")
    if m.residual not in registry.residuals():
        refuse(f"no residual is called '{m.residual}'; choose one of {', '.join(registry.residuals())}")
    if m.lam is not None and m.lam < 1:
        refuse(f"λ = {m.lam:g} would be stricter than the exact rule; give --lambda 1 or more")
    if (m.proposal == "none") != (m.tree == "none"):
        refuse("a proposal needs a tree, and autoregressive decoding (proposal none) has none")
    if m.proposal == "jacobi" and m.tree != "chain":
        refuse("Jacobi drafts one token per position, so its tree is a chain; leave --tree away")
    if (m.acceptance == "unchanged") and m.proposal != "jacobi":
        refuse("the rule 'unchanged' compares a Jacobi window with its redraw; use it with --method jacobi")
    if m.proposal == "none" and (m.acceptance != "exact" or m.residual != "standard"):
        refuse("autoregressive decoding drafts nothing, so there is nothing to accept")
    if m.proposal == "jacobi" and m.init not in jacobi.INITS:
        refuse(f"init must be one of {', '.join(jacobi.INITS)}")
    if m.tree == "adaptive" and m.init not in adaptive.INITS:
        refuse(f"init must be one of {', '.join(adaptive.INITS)}")
    if m.depth_range[0] > m.depth_range[1] or (m.width_range and m.width_range[0] > m.width_range[1]):
        refuse("a range needs its lower bound first")
