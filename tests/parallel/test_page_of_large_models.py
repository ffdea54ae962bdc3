"""The programs on the page about experts and long sequences run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"


@pytest.mark.parametrize("section", ["Experts", "Long sequences"])
def test_the_program_of_a_section_runs(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(rf"^## {section}$(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, section, "exec"), {"__name__": section})
    printed = capsys.readouterr().out
    if section == "Experts":
        assert "['0', '1']" in printed and "['6', '7']" in printed
    else:
        assert printed.splitlines()[0] == "[0, 1, 2, 11, 12] (2, 4, 5, 8)"
