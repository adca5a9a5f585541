"""Which lines of a text are code, where docstrings and texts begin and end."""

from __future__ import annotations

import pytest

from overlay.planning.code_lines import code_lines

#: By name, a text whose lines of code are marked with a ``+``.
TEXTS = {
    "a docstring in one line": """
+def f():
     \"\"\"Do it.\"\"\"
+    return 1
""",
    "a docstring of several lines, behind a header of two": """
+async def f(
+    value: int = 1,
+) -> int:
     '''Do it.

     value = 2
     '''
+    return value
""",
    "a docstring that ends in its second line": """
+class A:
     \"\"\"Do it
     now.\"\"\"
+    value = 1
""",
    "words, and more words, about a value": """
+value = X
 \"\"\"What it is.\"\"\"
 \"\"\"And why:

 since.\"\"\"
+other = 2
""",
    "words that begin with a sign are an argument": """
+value = 1
+\"\"\"(what it is)\"\"\"
+other = 2
""",
    "a docstring may begin with a sign": """
+def f():
     \"\"\"(Do it.)\"\"\"
+    return 1
""",
    "a text that is an argument": """
+value = call(1,
+\"\"\"a text\"\"\"
 )
+other = 2
""",
    "a text that goes on behind its end": """
+def f():
+    \"\"\"a text\"\"\" + other
+    \"\"\"another
+    one\"\"\" + other
+    return 1
""",
    "a text that is assigned, with what looks like a docstring in it": """
+value = \"\"\"
+def f():
+    '''Do it.'''
+    '''one
+    two
     '''
 \"\"\"
+def g():
     \"\"\"Do it.\"\"\"
+    return 2
""",
    "a text in the other quotes": """
+value = '''
+def f():
+    \"\"\"Do it.\"\"\"
 '''
+def g():
     \"\"\"Do it.\"\"\"
""",
    "a text that begins and ends in a line is over": """
+value = \"\"\"a\"\"\" + '''b'''
+def g():
     \"\"\"Do it.\"\"\"
""",
    "an opening without an end": """
+def f():
+    \"\"\"Do it
+    return 1
""",
    "the end of a text that began before": """
+of a text\"\"\"
 # a comment
+value = 1
""",
    "what is first may be the end of a text": """
+\"\"\"a text\"\"\"
+value = 1
""",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_lines_of_code_are_told_from_docstrings_and_comments(text: str) -> None:
    marked = text.splitlines()[1:]
    lines = [line[1:] for line in marked]
    code = [at for at, _ in code_lines(lines)]
    assert code == [at for at, line in enumerate(marked) if line.startswith("+")]
