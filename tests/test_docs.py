"""Pages that are generated from the code are as the code would write them."""

import importlib.util
import re
from pathlib import Path

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
