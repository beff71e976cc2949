"""Settings, logging, progress: argument beats variable beats default, each error a sentence."""

from __future__ import annotations

import io
import logging

import pytest

from shmgpu.common import config, logs, parsers, progress
from shmgpu.common.progress import ProgressBar
from shmgpu.errors import ConfigError

TEXTS = {"log", "debug_dir"}  # settings for which any text may mean something


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), (4096, 4096), ("1.5 GB", 1_500_000_000), ("2k", 2000), ("0", 0)],
)
def test_sizes_are_read_with_their_units(text, size):
    assert parsers.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "64 parsecs", -1, 1 << 60, True, 1.5, None, "-4k"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError):
        parsers.parse_bytes(text)


def test_an_argument_beats_the_variable_which_beats_the_default(monkeypatch):
    assert config.resolve("window") == 64
    monkeypatch.setenv("SHMGPU_WINDOW", "32")
    assert config.resolve("window") == 32
    assert config.resolve("window", 16) == 16


@pytest.mark.parametrize("name", config.SETTINGS)
def test_every_setting_has_a_default_that_its_variable_can_say_and_refuses_nonsense(
    name, monkeypatch
):
    variable = "SHMGPU_" + name.upper()
    monkeypatch.delenv(variable, raising=False)
    default = config.resolve(name)
    if default is not None:
        monkeypatch.setenv(variable, str(default))
        assert config.resolve(name) == default
    if name not in TEXTS:
        monkeypatch.setenv(variable, "neither this nor that")
        with pytest.raises(ConfigError, match=variable):
            config.resolve(name)


@pytest.mark.parametrize("name", sorted(TEXTS))
@pytest.mark.parametrize("value", [3, b"text", ["text"], lambda: "text"])
def test_a_text_is_text(name, value, tmp_path):
    with pytest.raises(ConfigError, match=f"{name}=.* is not text"):
        config.resolve(name, value)
    assert config.resolve(name, "text") == "text"
    assert config.resolve("debug_dir", tmp_path) == str(tmp_path)


def test_an_error_names_the_variable_it_came_from(monkeypatch):
    monkeypatch.setenv("SHMGPU_WINDOW", "lots")
    with pytest.raises(ConfigError, match="SHMGPU_WINDOW"):
        config.resolve("window")
    with pytest.raises(ConfigError, match="window=0"):
        config.resolve("window", 0)


def test_a_variable_that_means_nothing_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(config, "_warned_of", set())
    monkeypatch.setenv("SHMGPU_WINDWO", "32")
    monkeypatch.setenv("SHMGPU_QUITE_DIFFERENT", "1")
    with pytest.warns(UserWarning) as warned:
        config.warn_unknown()
        config.warn_unknown()
    other, close = (str(one.message) for one in warned)
    assert close.endswith("SHMGPU_WINDWO means nothing to shmgpu: unset it, or use SHMGPU_WINDOW")
    assert "use SHMGPU_{ARENA,AUTO," in other


def test_records_carry_the_role(caplog):
    before = logs.role()
    logs.set_role("helper 3")
    try:
        with caplog.at_level(logging.WARNING, logger="shmgpu"):
            logs.logger.warning("said")
    finally:
        logs.set_role(before)
    assert caplog.records[-1].role == "helper 3"


def test_a_log_level_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("SHMGPU_LOG", "loud")
    with pytest.raises(ConfigError, match="LOUD"):
        logs.configure()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_draws_on_a_terminal_only():
    screen, pipe = Terminal(), io.StringIO()
    for file in (screen, pipe):
        with ProgressBar(3, "work", file=file) as bar:
            for _ in range(3):
                bar.update()
        assert bar.count == 3
    assert "work" in screen.getvalue() and "3/3" in screen.getvalue()
    assert pipe.getvalue() == ""


@pytest.mark.parametrize("has_tqdm", [True, False])
def test_a_bar_may_say_something_else_later(monkeypatch, has_tqdm):
    if has_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setattr(progress, "_make_tqdm", lambda *_: None)
    screen = Terminal()
    with ProgressBar(2, "loss 3", file=screen) as bar:
        bar.describe("loss 1")
        bar.update(2)
    assert screen.getvalue().rpartition("\r")[2].startswith("loss 1")


def test_a_bar_without_tqdm_draws_ten_times_a_second_at_most(monkeypatch):
    now, screen = [100.0], Terminal()
    monkeypatch.setattr(progress, "_make_tqdm", lambda *_: None)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = ProgressBar(60, "work", file=screen, delay=0.0)
    for _ in range(60):
        now[0] += 0.0625
        bar.update()
    assert screen.getvalue().count("\r") == 30  # every second of them
