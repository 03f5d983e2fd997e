"""Error classes of bmrl. Each carries the exit code of the command that meets it.

An error that a user can cause is one of these, and its text is one line that names the place and the
fix. Anything else is a bug and shows its traceback.
"""


class BmrlError(Exception):
    """The command failed: a file is damaged, a run cannot go on, a disk is full."""

    exit_code = 1


class UsageError(BmrlError):
    """The command line or the recipe asks for something that cannot be done."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe with mistakes: all of them, one line each.

    Args:
        problems: finished lines, ``file:line: key.path: problem; hint``.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Interrupted(BmrlError):
    """Ctrl-C or SIGTERM, after the checkpoint has been saved."""

    exit_code = 130
