"""Pages from templates: each is one self-contained HTML file."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

from .charts import Section, TextTable
from .overview import Fact


def render_page(
    title: str, facts: Sequence[Fact], sections: Sequence[Section], footer: str, **more: Any
) -> str:
    """Return a page of sections, with its time. ``more``: further values for the template.

    Raises: ConfigError: jinja2 is not installed.
    """
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    values = {"title": title, "facts": facts, "sections": sections, "footer": footer, "made": made}
    page: str = _environment().get_template("page.html.j2").render(values | {"report": None} | more)
    return page


def _environment() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ConfigError(
            "a report needs jinja2, which is not installed", "pip install 'gossip-train[report]'"
        ) from error
    from . import svg

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = svg.draw
    environment.tests["table"] = lambda part: isinstance(part, TextTable)
    return environment
