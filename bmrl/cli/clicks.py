"""click, with every mistake of a command line at once and one line each."""

import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import click
from click.core import iter_params_for_processing


class Range(click.FloatRange):
    """click's range of numbers, which lets nan through: that is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click's."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Mistakes(click.UsageError):
    """Several mistakes of one command line."""

    def __init__(self, lines: list[str], ctx: click.Context) -> None:
        super().__init__("\n".join(lines), ctx)


class Command(click.Command):
    """A command that looks at all of its arguments before it complains."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, but collects the mistakes of all parameters."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        mistakes: list[str] = []
        while True:
            try:
                given, rest, order = self.make_parser(ctx).parse_args(args=list(args))
                break
            except click.NoSuchOption as error:
                mistakes.append(_unknown_option(error.option_name, ctx))
                args = _without(args, error.option_name)
            except click.UsageError as error:
                raise Mistakes([*mistakes, _line(error)], ctx) from error
        unknown = bool(mistakes)
        for param in iter_params_for_processing(order, self.get_params(ctx)):
            try:
                _, rest = param.handle_parse_result(ctx, given, rest)
            except click.MissingParameter as error:
                # What looked like the value of an unknown option may have been this argument.
                if not unknown:
                    mistakes.append(_line(error))
            except click.UsageError as error:
                mistakes.append(_line(error))
        if rest and not unknown:
            mistakes.append(f"unexpected argument {' '.join(rest)}")
        if mistakes:
            raise Mistakes(mistakes, ctx)
        return super().parse_args(ctx, args)


class Group(click.Group):
    """A group that suggests a command for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            hint = _suggest(args[0], names) or f"commands: {', '.join(names)}"
            raise click.UsageError(f"no such command {args[0]}; {hint}", ctx)
        return super().resolve_command(ctx, args)


def problems(error: click.ClickException) -> list[str]:
    """Lines for a click error, each with where to read more."""
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return [f"no command given; see {_path(ctx)} --help"]
    if isinstance(error, Mistakes):
        lines = error.message.splitlines()
    elif isinstance(error, click.NoSuchOption) and ctx is not None:
        lines = [_unknown_option(error.option_name, ctx)]
    else:
        lines = [_line(error)]
    return [f"{line}; see {_path(ctx)} --help" for line in lines]


def _path(ctx: click.Context | None) -> str:
    return ctx.command_path if ctx is not None else "bmrl"


def _line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _unknown_option(option: str, ctx: click.Context) -> str:
    if ctx.parent is not None and option in _options(ctx.find_root()):
        return f"no such option {option} here; it goes before the command: bmrl {option} …"
    hint = _suggest(option, list(_options(ctx)))
    return f"no such option {option}" + (f"; {hint}" if hint else "")


def _options(ctx: click.Context) -> Iterator[str]:
    for param in ctx.command.get_params(ctx):
        yield from param.opts


def _suggest(word: str, names: list[str]) -> str | None:
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else None


def _without(args: list[str], option: str) -> list[str]:
    """The arguments without an option and what looks like its value."""
    for index, word in enumerate(args):
        if word == option:
            after: Any = args[index + 1 : index + 2]
            value = 1 if after and not after[0].startswith("-") else 0
            return [*args[:index], *args[index + 1 + value :]]
        if word.startswith((f"{option}=", option)):
            return [*args[:index], *args[index + 1 :]]
    return []
