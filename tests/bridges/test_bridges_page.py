"""The page of bridges, with the blocks that need torchvision."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "bridges.md"


def test_all_blocks_of_the_page_run() -> None:
    session: dict[str, object] = {}
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), session)
