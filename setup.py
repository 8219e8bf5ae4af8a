"""Steps of the build that pyproject.toml cannot state: the tokenizers' vocabularies go into each sdist and wheel."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from app.vocabulary import INSIDE
from requirements.vocabulary import install


class Modules(build_py):
    """The files of a wheel. One for an editable install has no files: `make` serves the environment."""

    def run(self) -> None:
        """Copy the modules, and add the vocabularies."""
        super().run()
        if not self.editable_mode:
            install(Path(self.build_lib) / "app" / INSIDE.name)


class Sources(sdist):
    """An sdist of which a wheel is built without the network."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and add the vocabularies."""
        super().make_release_tree(base_dir, files)
        install(Path(base_dir) / "app" / INSIDE.name)


setup(cmdclass={"build_py": Modules, "sdist": Sources})
