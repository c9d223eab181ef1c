"""The code of docs/layer.md runs."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "layer.md"


def test_the_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(snippets) == 2
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(snippet, names)
