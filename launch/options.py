"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else, to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what peers print and what goes wrong.")]
Advertise = Annotated[
    str, typer.Option(help="Own address that other machines reach: a number, an interface or a network.", show_default=False)
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of this launcher's door, where others join; 0: a free one.")]
