"""Options without their own default, and groups with a default command."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


def optional(help: str, *names: str, **more: Any) -> Any:
    """Return an option without a visible default value. The help text itself states what happens
    without the option.

    Args:
        more: Further arguments of ``typer.Option``.
    """
    return typer.Option(*names, help=help, show_default=False, **more)


def group_with_default(command: str) -> type[TyperGroup]:
    """Return the class of a group that runs ``command`` if its first argument names no command."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] != "--help":
                args = [command, *args]
            return super().parse_args(ctx, args)

    return Group
