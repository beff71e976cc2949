"""Where a program's text is typed as it runs, so that functions may be defined anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shmgpu.attach import redefined
from shmgpu.common import module_names


@pytest.mark.parametrize(
    ("interactive", "more", "main", "is_prompt"),
    [
        (0, {}, {"__file__": "a.py"}, False),
        (1, {}, {"__file__": "a.py"}, True),  # python -i a.py
        (0, {"ps1": ">>> "}, {"__file__": "a.py"}, True),
        (0, {}, {}, True),  # a notebook
        (1, {"ps1": ">>> "}, {}, True),
        (0, {}, {"__file__": "a.py", "__spec__": SimpleNamespace(name="project.__main__")}, False),
        (0, {}, {"__file__": "a.py", "__spec__": SimpleNamespace(name="asyncio.__main__")}, True),
    ],
)
def test_a_prompt_is_one_by_its_flag_or_its_sign_or_for_want_of_a_file(
    monkeypatch, interactive, more, main, is_prompt
):
    stand_in = SimpleNamespace(
        flags=SimpleNamespace(interactive=interactive),
        modules={"__main__": SimpleNamespace(**main)},
        **more,
    )
    monkeypatch.setattr(redefined, "sys", stand_in)
    monkeypatch.setattr(module_names, "sys", stand_in)
    assert redefined.is_prompt() is is_prompt
