"""Keys of sources that no change has made old."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build import remembered, sources
from gemmill.build.options import BuildOptions
from gemmill.build.planning import variant_sources
from gemmill.build.remembered import KnownSources
from gemmill.build.sources import Source
from gemmill.build.workshop import keys_for
from gemmill.locations import package_dir
from gemmill.space.selections import Selection, select
from gemmill.vocab import Arch

HOUR = 3600.0


class Home:
    """A folder of kernels as they were an hour ago, and its rendered sources."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels = folder / "kernels"
        self.header = self.kernels / "core" / "a.h"
        self.header.parent.mkdir(parents=True)
        self.write("// 1\n", age=HOUR)
        self.path = folder / "memo" / "sources.json"
        self.keys = keys_for(Arch.SM90A, BuildOptions(home=folder))
        self.rendered: list[str] = []
        emit = sources.emit
        monkeypatch.setattr(sources, "emit", lambda config: self.rendered.append(config.tag) or emit(config))
        # The package itself may have been edited a second ago.
        monkeypatch.setattr(remembered, "package_dir", lambda: folder / "none")
        monkeypatch.setattr(remembered, "templates_dir", lambda: folder / "none")

    def write(self, text: str, *, age: float) -> None:
        self.header.write_text(text)
        os.utime(self.header, (time.time() - age,) * 2)

    def sources(self, selection: Selection) -> tuple[Source, ...]:
        known = KnownSources(self.path, self.keys, self.kernels)
        self.rendered.clear()
        made = variant_sources(selection.configs, self.keys, known)
        known.save()
        return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


@pytest.fixture
def few() -> Selection:
    smoke = select("smoke", Arch.SM90A)
    dsl = next(config for config in smoke.configs if sources.is_of_dsl(config))
    return replace(smoke, configs=(smoke.configs[0], dsl))


def test_nothing_is_rendered_twice(home: Home, few: Selection) -> None:
    first = home.sources(few)
    assert len(home.rendered) == 2
    again = home.sources(few)
    assert again == first and not home.rendered
    assert [source.text for source in again] == [source.text for source in first], (
        "a text is rendered when it is asked for"
    )
    assert home.rendered


@pytest.mark.parametrize(
    "change", ["a header", "a new header", "flags", "nvcc", "the DSL", "damage", "others may write"]
)
def test_a_change_renders_again(home: Home, few: Selection, change: str) -> None:
    first = home.sources(few)
    changes: dict[str, Callable[[], object]] = {
        "a header": lambda: home.write("// 2\n", age=HOUR - 10),
        "a new header": lambda: os.utime(home.header.rename(home.header.with_name("b.h")), (time.time() - HOUR,) * 2),
        "flags": lambda: vars(home).update(keys=replace(home.keys, flags=replace(home.keys.flags, cuda=("-O1",)))),
        "nvcc": lambda: vars(home).update(keys=replace(home.keys, cuda="other")),
        "the DSL": lambda: vars(home).update(keys=replace(home.keys, dsl="other")),
        "damage": lambda: home.path.write_text(home.path.read_text().replace(first[0].key, "0" * 64)),
        "others may write": lambda: home.path.chmod(0o777),
    }
    changes[change]()
    home.sources(few)
    assert len(home.rendered) == 2
    home.sources(few)
    assert not home.rendered


def test_a_file_that_changed_just_now_is_not_trusted(home: Home, few: Selection) -> None:
    home.write("// 2\n", age=0)
    home.sources(few)
    assert not home.path.exists()
    home.sources(few)
    assert len(home.rendered) == 2


def test_a_link_to_nothing_stops_no_build(home: Home, few: Selection) -> None:
    home.header.with_name(".#a.h").symlink_to("nobody@nowhere")
    home.sources(few)
    assert len(home.rendered) == 2 and not home.path.exists()


def test_what_a_source_is_made_from_is_looked_at(tmp_path: Path) -> None:
    keys = keys_for(Arch.SM90A, BuildOptions(home=tmp_path))
    (tmp_path / "kernels").mkdir()
    known = KnownSources(tmp_path / "sources.json", keys, tmp_path / "kernels")
    known.keep("name", ["path", "key", ""])
    known.save()
    if not (tmp_path / "sources.json").exists():
        pytest.skip("a file of the package changed within the last seconds")
    assert json.loads((tmp_path / "sources.json").read_text())["rows"] == {"name": ["path", "key", ""]}
    assert any(path.name == "remembered.py" for path in remembered._files(package_dir()))
