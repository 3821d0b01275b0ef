"""The templates of reports."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lanternbench.report.style import colour
from lanternbench.report.tables import markdown_escape
from lanternbench.utils.text import one_line


def templates() -> Environment:
    """Return the templates of this package: text is escaped for HTML but in LaTeX, and cut to one
    printable line.
    """
    environment = Environment(
        loader=PackageLoader("lanternbench.report"),
        autoescape=lambda name: not (name or "").endswith(".tex"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["colour"] = colour
    environment.filters["plain"] = lambda text, limit=200: one_line(str(text), limit)
    environment.filters["md"] = lambda text, limit=200: Markup(markdown_escape(str(text), limit))
    return environment
