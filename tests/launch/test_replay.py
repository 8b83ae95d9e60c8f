"""``mpgrad replay`` where there is nothing to replay; the rest is in ``process/test_journals``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpgrad.launch import cli


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"", "no journal"), (b"PNG", "no journal")]
)
def test_what_is_no_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    file = tmp_path / "a.journal"
    if content is not None:
        file.write_bytes(content)
    assert cli.main(["replay", str(file)]) == 2
    assert said in capsys.readouterr().err
