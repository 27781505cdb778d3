"""The images of README and docs: each is linked, and each is drawn by one command or from weights."""

import re
from pathlib import Path

from tools.figures import FROM_WEIGHTS, IMAGES, images

ROOT = Path(__file__).parents[2]


def test_images_are_linked_and_known():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    linked = {name for page in pages for name in re.findall(r"images/([\w.-]+)", page.read_text(encoding="utf-8"))}
    drawn = {image for found in images(ROOT).values() for image in found.values()} | set(FROM_WEIGHTS)
    assert set(IMAGES) - set(images(ROOT)) <= {"throughput-training", "throughput-generation"}, "measured later"
    present = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert present == linked == {f"{image}.png" for image in drawn}
