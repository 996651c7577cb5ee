"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else, to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what peers print and what goes wrong.")]
