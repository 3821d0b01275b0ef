"""Pictures as SVG inside the page, styled by report.css, so that they are dark where the reader's screen is."""

from __future__ import annotations

from markupsafe import Markup, escape

from lanternbench.report.scene import Bar, Group, Item, Line, Mark, Scene


def svg(scene: Scene, name: str) -> Markup:
    """``<svg class="name">`` of a scene; a group that says something can be focused."""
    head = Markup('<svg class="{}" viewBox="0 0 {:g} {:g}" role="group" aria-label="{}">')
    return Markup("").join(
        [head.format(name, scene.width, scene.height, scene.title), *map(_group, scene.groups), Markup("</svg>")]
    )


def _group(group: Group) -> Markup:
    style = Markup(' style="--c: {}"').format(group.colour) if group.colour else Markup("")
    said = Markup(' class="point" tabindex="0" role="img" aria-label="{}"').format(group.said) if group.said else ""
    return Markup("<g{}{}>{}</g>\n").format(said, style, Markup("").join(map(_item, group.items)))


def _item(item: Item) -> Markup:
    if isinstance(item, Line):
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in item.points)
        return Markup('<path class="{}" d="{}"/>').format(item.role, path)
    if isinstance(item, Bar):
        return Markup('<rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}"/>').format(
            item.role, item.x, item.y, max(item.width, 0), max(item.height, 0)
        )
    if isinstance(item, Mark):
        return _mark(item)
    turn = f"translate({item.x:g} {item.y:g}) rotate(-90)" if item.turned else ""
    place = Markup('transform="{}"').format(turn) if turn else Markup('x="{:g}" y="{:g}"').format(item.x, item.y)
    return Markup('<text class="{}" {} text-anchor="{}">{}</text>').format(
        item.role, place, item.anchor, escape(item.text)
    )


def _mark(mark: Mark) -> Markup:
    r = {"circle": 5.0, "diamond": 6.1, "small": 2.5}[mark.shape]
    x, y = mark.x, mark.y
    if mark.shape == "diamond":
        whole = f"M{x:g} {y - r:g}L{x + r:g} {y:g}L{x:g} {y + r:g}L{x - r:g} {y:g}Z"
        half = f"M{x:g} {y - r:g}L{x:g} {y + r:g}L{x - r:g} {y:g}Z"
    else:
        whole = f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0"
        half = f"M{x:g} {y - r:g}a{r:g} {r:g} 0 0 0 0 {2 * r:g}Z"
    found = Markup('<path class="mark {}" d="{}"/>').format(mark.fill, whole)
    if mark.fill == "half":
        found += Markup('<path class="mark full" d="{}"/>').format(half)
    if mark.fill == "dot":
        found += Markup('<circle class="mark full" cx="{:g}" cy="{:g}" r="1.5"/>').format(x, y)
    return found
