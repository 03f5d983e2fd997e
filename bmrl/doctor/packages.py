"""Installed packages against the ranges that bmrl is tested with, which are those it asks its installer for."""

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from bmrl.doctor.finding import Finding, note, ok, problem

LEFT_OUT = "dev"  # extra whose packages a user has no need of


def requirements() -> list[tuple[Requirement, str | None]]:
    """What the installed bmrl asks for, and the extra that does; None: every installation. Empty if not installed."""
    try:
        lines = metadata.requires("bmrl") or []
        extras = metadata.metadata("bmrl").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    found: list[tuple[Requirement, str | None]] = []
    for line in lines:
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            found.append((needed, None))
            continue
        asking = [extra for extra in extras if needed.marker.evaluate({"extra": extra})]
        found += [(needed, extra) for extra in asking[:1] if extra != LEFT_OUT]
    # What two extras ask for is told once, by the first of them, unless they ask for different versions.
    return list({(needed.name, str(needed.specifier)): (needed, extra) for needed, extra in reversed(found)}.values())[
        ::-1
    ]


def range_of(name: str) -> str:
    """The requirement of a package as an installer takes it: ``torch<2.15,>=2.4``; its name where nothing is said."""
    return next((_plain(needed) for needed, _ in requirements() if needed.name.lower() == name), name)


def examine_packages() -> Iterator[Finding]:
    """Each package with its version and range."""
    needed = requirements()
    if not needed:
        yield problem("packages", "bmrl is not installed, so that no versions can be compared", "pip install -e .")
    for requirement, extra in needed:
        yield _examined(requirement, extra)


def _examined(requirement: Requirement, extra: str | None) -> Finding:
    name, tested = requirement.name, f"tested with {requirement.specifier}"
    install = f"pip install '{_plain(requirement)}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if extra is None:
            return problem("packages", f"{name} is not installed", install, blocks=True)
        return note("packages", f"{name} is not installed: pip install 'bmrl[{extra}]' ({tested})")
    try:
        fits = requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = False
    if fits:
        return ok("packages", f"{name} {version} ({tested})")
    return problem("packages", f"{name} {version} is out of range ({tested})", install)


def _plain(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
