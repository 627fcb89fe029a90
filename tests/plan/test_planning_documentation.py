"""Every command on the page about choosing prints what the page says."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "choosing.md"


@pytest.mark.nightly
def test_the_page_about_choosing_shows_what_its_commands_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from terrine_server.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    text = PAGE.read_text()
    for code in re.findall(r"```python\n(?!>>>)(.*?)```", text, re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), {})
    shown = re.findall(r"```console\n\$ (.*?)\n(.*?)\n```", text, re.DOTALL)
    assert len(shown) == 1
    for command, expected in shown:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
        assert printed == expected.splitlines(), command
