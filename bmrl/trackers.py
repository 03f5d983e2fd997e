"""Other places that a run's metrics go to, each through its own library. ``metrics.jsonl`` is always written.

A tracker is a guest: whatever it does, training goes on. One that fails says so in a line, and is left alone.
"""

import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmrl.atomic import write_json
from bmrl.redact import redacted

PROJECT = "bmrl"
FILE = "tracking.json"  # in the run folder: by what id its trackers know it, so that a resumed run stays one run
Log = Callable[[Mapping[str, float], int], None]
Close = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run, as its trackers are told of it.

    Attributes:
        config: the resolved recipe without folders and secrets of the machine.
        id: the same after a resume.
        step: steps that are done already.
    """

    folder: Path
    config: dict[str, Any]
    id: str
    step: int

    @property
    def name(self) -> str:
        """For people; unlike the id it may come twice."""
        return self.folder.resolve().name


class Trackers:
    """The trackers of a run, as long as they work.

    Args:
        names: of `OPENERS`; others are passed over.
        recipe: resolved.
        step: steps that are done already; what a tracker has of later ones is played again.
        warn: takes a line for the user.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, recipe: Mapping[str, Any], step: int, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._open: dict[str, tuple[Log, Close]] = {}
        wanted = [name for name in names if name in OPENERS]
        if not wanted:
            return
        run = Tracked(folder, redacted(recipe), _id(folder), step)
        for name in wanted:
            with self._guarded(name), contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                self._open[name] = OPENERS[name](run)

    def log(self, record: Mapping[str, float | None], step: int) -> None:
        """Hand the numbers of a step on; those that are unknown are left out."""
        known = {key: value for key, value in record.items() if value is not None and key != "step"}
        for name, (log, _) in list(self._open.items()):
            with self._guarded(name):
                log(known, step)

    def close(self) -> None:
        """Finish what the trackers hold back; afterwards nothing is logged."""
        for name, (_, close) in list(self._open.items()):
            with self._guarded(name), contextlib.redirect_stdout(sys.stderr):
                close()
        self._open = {}

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Any:
        try:
            yield
        except (Exception, SystemExit) as error:  # of a library that is not ours
            self._open.pop(name, None)
            said = " ".join(str(redacted(str(error))).split())[:200] or type(error).__name__
            self._warn(f"warning: {name} failed, the run goes on without it (metrics.jsonl has all): {said}")


def _id(folder: Path) -> str:
    path = folder / FILE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_bytes())["id"])
    made = secrets.token_hex(4)
    write_json(path, {"id": made})
    return made


def _tensorboard(run: Tracked) -> tuple[Log, Close]:
    """Event files in ``tensorboard/`` of the run; steps that are played again replace the old ones."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.step + 1 if run.step else None)

    def log(record: Mapping[str, float], step: int) -> None:
        for key, value in record.items():
            writer.add_scalar(key, value, step)

    return log, writer.close


def _wandb(run: Tracked) -> tuple[Log, Close]:
    """A run of the project `PROJECT`; ``WANDB_MODE=offline`` keeps it in ``wandb/`` of the run folder."""
    import wandb

    # Nothing of the machine goes out: no host name, paths, code, packages, or what its terminal says.
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        host="",
        login_timeout=30,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    session = wandb.init(
        project=PROJECT,
        name=run.name,
        id=f"{run.name}-{run.id}",
        resume="allow",
        config=run.config,
        dir=str(run.folder),
        settings=settings,
    )

    def log(record: Mapping[str, float], step: int) -> None:
        session.log(dict(record), step=step)

    return log, session.finish


def _trackio(run: Tracked) -> tuple[Log, Close]:
    """A run of the project `PROJECT`, where trackio keeps its own (``TRACKIO_DIR``)."""
    import trackio

    session = trackio.init(
        project=PROJECT,
        name=f"{run.name}-{run.id}",
        config=run.config,
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )

    def log(record: Mapping[str, float], step: int) -> None:
        session.log(dict(record), step=step)

    return log, trackio.finish  # not the session's own: it would be finished once more, aloud, at the program's end


# name in a recipe -> what opens it; the package and the extra are called alike
OPENERS: dict[str, Callable[[Tracked], tuple[Log, Close]]] = {
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}
