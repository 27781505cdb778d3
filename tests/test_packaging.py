"""The package's metadata: project URLs, and a README whose links work outside the repository."""

import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_project_urls_are_of_one_repository(project):
    urls = project["urls"]
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_links_of_the_published_readme_are_absolute(project, monkeypatch):
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin", "hatchling.metadata.plugin.interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # only builds have it
    sys.modules["hatchling.metadata.plugin.interface"].MetadataHookInterface = object
    module = importlib.import_module("tools.published_readme")
    repository = project["urls"]["Repository"]
    text = module.absolute(README, repository)
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", text), "relative links"
    assert f"]({repository}/raw/main/docs/images/cdar-tiny-accuracy.png)" in text
    assert f"]({repository}/blob/main/docs/operation.md)" in text
    assert "](#citation)" in text
    assert "](https://github.com/lindermanlab/" in text
    assert module.absolute(text, repository) == text
    hook, metadata = module.PublishedReadme(), {"urls": {"Repository": repository}}
    hook.root = ROOT
    hook.update(metadata)
    assert metadata["readme"] == {"content-type": "text/markdown", "text": text}
