"""The tables of settings on the pages, made from the list.

Owns their form. Run ``python -m shmgpu.common.settings_page`` after you change a row; a test fails
if you forget. Never imported by the package.
"""

from __future__ import annotations

import pathlib
import re

from shmgpu.common import settings


def table_of_parameters() -> str:
    """The parameters of ``launch`` and ``init``, as broker/README.md shows them."""
    lines = ["| parameter | of | meaning |", "|---|---|---|"]
    for row in settings.ROWS:
        of = [name for name in ("launch", "init") if row.is_taken_by(name)]
        if of:
            who = "both" if len(of) == 2 else of[0]
            lines.append(f"| `{row.name}` | {who} | {row.meaning}{row.detail} |")
    return "\n".join(lines)


def table_of_variables() -> str:
    """The variables, as common/README.md shows them."""
    lines = ["| variable | argument | default | meaning |", "|---|---|---|---|"]
    for row in settings.ROWS:
        if not row.has_variable:
            continue
        is_parameter = row.is_taken_by("launch") or row.is_taken_by("init")
        default = int(row.default) if isinstance(row.default, bool) else row.default
        shown = "none" if default in (None, "") else default
        meaning = row.meaning if is_parameter else row.meaning + row.detail
        argument = f"`{row.name}`" if is_parameter else ""
        lines.append(
            f"| `{row.variable}` | {argument} | {shown} | {meaning} |".replace("|  |", "| |")
        )
    return "\n".join(lines)


def main() -> None:
    """Write both tables into their pages."""
    folder = pathlib.Path(__file__).resolve().parents[1]
    for wing, table in (("broker", table_of_parameters()), ("common", table_of_variables())):
        page = folder / wing / "README.md"
        text = page.read_text(encoding="utf-8")
        first = text.index(table.partition("\n")[0])
        last = re.compile(r"\n(?!\|)").search(text, first)
        assert last is not None
        page.write_text(text[:first] + table + text[last.start() :], encoding="utf-8")


if __name__ == "__main__":
    main()
