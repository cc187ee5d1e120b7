"""The image, built once for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image import machine
from tests.image.building import Builder, Image, builder
from tests.image.container import ANYBODY, Container


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A builder with a base."""
    if problems := machine.problems():
        pytest.fail("the image cannot be built and run here:\n" + "\n".join(problems), pytrace=False)
    with builder(tmp_path_factory.mktemp("image") / "workshop") as made:
        made.make_base()
        yield made


@pytest.fixture(scope="session")
def image(workshop: Builder) -> Image:
    """The image without an agent."""
    return workshop.build("image")


@pytest.fixture(scope="session")
def root(workshop: Builder, image: Image) -> Path:
    """Its file system."""
    return workshop.mounted("image")


@pytest.fixture
def container(image: Image, root: Path, tmp_path: Path) -> Container:
    """It is run as a cluster runs it that gives each namespace users of its own."""
    return Container(image, root, tmp_path / "containers", ANYBODY)
