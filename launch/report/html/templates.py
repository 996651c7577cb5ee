"""Pages from templates: each is one self-contained HTML file."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

from .charts import Section, TextTable
from .overview import Fact


def fill(template: str, **values: Any) -> str:
    """Return the page of a template, with its time.

    Raises: ConfigError: jinja2 is not installed.
    """
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    page: str = _environment().get_template(template).render(made=made, **values)
    return page


def render_sections(
    title: str, facts: Sequence[Fact], sections: Sequence[Section], footer: str
) -> str:
    """Return a page of sections alone.

    Raises: ConfigError: jinja2 is not installed.
    """
    values = {"title": title, "facts": facts, "sections": sections, "footer": footer}
    return fill("sections.html.j2", **values)


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
