"""Pages that are generated from the code are as the code would write them."""

import importlib.util
import re
from pathlib import Path

from bmrl import algorithm
from bmrl.recipe import Recipe
from bmrl.recipe.messages import sections, tag

ROOT = Path(__file__).resolve().parent.parent


def test_reference_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = generate.pages()
    assert len(pages) == 2
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run: make docs ({path.name} is old)"


def test_every_field_of_a_recipe_is_explained() -> None:
    rows = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8").splitlines()
    keys = [row for row in rows if row.startswith("| `")]
    assert len(keys) > 70
    assert [row for row in keys if row.endswith("|  |")] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_algorithms_have_pages_that_name_what_there_is() -> None:
    folder = ROOT / "docs" / "algorithms"
    table = (folder / "README.md").read_text(encoding="utf-8")
    names = [tag(section)[1] for section in sections(Recipe.model_fields["algorithm"].annotation)]
    assert len(names) == 6
    for name in names:
        found = re.search(rf"^\| `{name}`.*\]\((\w+\.md)\) \|$", table, re.MULTILINE)
        assert found is not None, name
        assert f"# {name}" in (folder / found[1]).read_text(encoding="utf-8") or found[1] == "grpo.md"
    for page in folder.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for function in set(re.findall(r"`algorithm\.(\w+)`", text)) - {"name"}:
            assert hasattr(algorithm, function), f"{page.name}: {function}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / link).exists(), f"{page.name}: {link}"
