"""Bad changes, sessions and documents of features, as a stranger writes them (group H)."""

# mypy types no lambda with a default, and each row of a loop has one.
# mypy: disable-error-code="misc"

from __future__ import annotations

import shutil

from tests.commands.bad_inputs.table import Arguments, World, row, simple
from tests.support.cli import PROPOSER
from tests.support.patches import hunk, patch_text, write_feature

_PATCH = patch_text(
    PROPOSER, hunk(["         self.model = None", "+        self.x = 1"], "<module>")
)

_DIFF = (
    b"diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n"
    b"@@ -1 +1 @@\n-a = 1\n+a = 2\n"
)

_NEW = b"diff --git a/vllm/%s b/vllm/%s\nnew file mode 100644\n--- /dev/null\n+++ b/vllm/%s\n"


def _mail(headers: bytes, body: bytes = _DIFF) -> bytes:
    return b"From 0123456789 Mon Sep 17 00:00:00 2001\n" + headers + b"\n" + body


_PARTS = b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (part, part) for part in range(3000)
)

_CHANGES = {
    "a path of 2,000 folders": (_DIFF.replace(b"vllm/a.py", b"vllm/" + b"a/" * 2000 + b"a.py"), ""),
    "an added path of 2,000 folders": (
        (_NEW % ((b"a/" * 2000 + b"a.py",) * 3)) + b"@@ -0,0 +1 @@\n+a = 1\n",
        "",
    ),
    "a name of 300 characters": (_DIFF.replace(b"a.py", b"a" * 300 + b".py"), ""),
    "a line number of 5,000 digits": (
        _DIFF.replace(b"-1 ", b"-" + b"9" * 5000 + b" "),
        "ten digit",
    ),
    "a line number of 4,000 digits": (
        _DIFF.replace(b"-1 ", b"-" + b"9" * 4000 + b" "),
        "ten digit",
    ),
    "20,000 brackets in From": (_mail(b"From: " + b"(" * 20000 + b"\nSubject: x\n"), "From"),
    "5,000 brackets in From": (_mail(b"From: " + b"(" * 5000 + b"\nSubject: x\n"), "cannot be"),
    "50,000 encoded words in the subject": (
        _mail(b"From: a\nSubject: x\n" + b" =?utf-8?q?a?=\n" * 50000),
        "Subject",
    ),
    "50,000 parameters of a type": (
        _mail(b"From: a\nSubject: x\nContent-Type: text/plain" + b"; a=b" * 50000 + b"\n"),
        "Content-Type",
    ),
    "3,000 nested parts": (_mail(b"From: a\nSubject: x\n" + _PARTS), "cannot be read"),
    "5,000 nested mails": (
        _mail(b"From: a\nSubject: x\n" + b"Content-Type: message/rfc822\n\n" * 5000),
        "cannot be read",
    ),
}
for _name, (_data, _word) in _CHANGES.items():
    simple(
        f"H {_name}",
        2,
        _word or "longer than any path",
        lambda w, d=_data: ["import", w.file("x.diff", d), "--id", "x", "--patches", w.tmp / "p"],
    )


@row("H --base of no checkout", 2, "no history of git")
def _no_checkout(w: World) -> Arguments:
    w.patch.setenv("GIT_CEILING_DIRECTORIES", str(w.tmp))
    (w.tmp / "nothing").mkdir()
    w.patch.chdir(w.tmp)
    change = w.file("x.diff", _DIFF)
    return ["import", change, "--id", "x", "--base", "nothing", "--patches", w.tmp / "p"]


simple("H --patches of no name", 2, "empty name", lambda _: ["list", "--patches", ""])

for _id in ("../x", "/etc/x", "", "A", "x/y", "a" * 300):
    simple(
        f"H --id {_id[:9]}",
        2,
        "expected" if len(_id) > 200 else "lower-case-with-hyphens",
        lambda w, i=_id: ["import", w.file("d", _DIFF), "--id", i, "--patches", w.tmp / "p"],
    )

# Sessions

_EDIT = """\
schema = 1
kind = "edit"
release = "0.26.0"
patches = "/nowhere"

[features]
x = ""

[below]

[notes]
folders = "/nowhere"

[files]
"""

_PORT = """\
schema = 1
kind = "port"
release = "0.26.0"
patches = ["/nowhere"]

[[waiting]]
feature = "x"
digest = ""
topic = "10-x"
path = "vllm/x.py"
base = "0.25.0"
laid = ""
"""

_LETTERS = "e" * 100_000

_EDITS = {
    "of no feature": ('x = ""', ""),
    "of two features": ('x = ""', 'x = ""\ny = ""'),
    "of an absolute feature": ('x = ""', '"/etc/x" = ""'),
    "of a feature above": ('x = ""', '"../../x" = ""'),
    "on a feature above": ("[below]", '[below]\n"../x" = ""'),
    "with a NUL in its folders": ('"/nowhere"\n\n[files]', '"/no\\u0000where"\n\n[files]'),
    "with a NUL in its patches": ('patches = "/nowhere"', 'patches = "/no\\u0000where"'),
    "of a kind of 100,000 letters": ('"edit"', f'"{"e" * 100_000}"'),
    "of a release of 100,000 letters": ('"0.26.0"', f'"{"e" * 100_000}"'),
    "of no release": ('"0.26.0"', '"not a release"'),
    "with a number of 5,000 digits": ("schema = 1", f"schema = {'9' * 5000}"),
    "with a key of 20,000 parts": ("schema = 1", f"{'a.' * 20000}a = 1\nschema = 1"),
    "of a file of 2,000 folders": (
        "[files]",
        f'[files]\n"vllm/{"a/" * 2000}a.py" = {{ base = "", laid = "" }}',
    ),
}
for _name, (_old, _new) in _EDITS.items():
    simple(
        f"H an edit {_name}",
        2,
        "found a damaged one",
        lambda w, o=_old, n=_new: _session(w, _EDIT, o, n, ["edit", "--commit"]),
    )

_PORTS = {
    "to no release": ('"0.26.0"', '"not a release"'),
    "of a feature above": ('feature = "x"', 'feature = "../x"'),
    "of a topic above": ('topic = "10-x"', 'topic = ".."'),
    "of an absolute topic": ('topic = "10-x"', 'topic = "/etc"'),
    "with a NUL in its patches": ('["/nowhere"]', '["/no\\u0000where"]'),
    "of a file elsewhere": ("vllm/x.py", "vllm/../../x.py"),
    "with an unknown key": ("laid =", "lain ="),
}
for _name, (_old, _new) in _PORTS.items():
    simple(
        f"H a port {_name}",
        2,
        "found a damaged one",
        lambda w, o=_old, n=_new: _session(w, _PORT, o, n, ["port", "--continue"]),
    )


simple(
    "H revert --keep-as a path, where nothing was edited",
    2,
    "as ids of features are",
    lambda w: ["revert", "--keep-as", "../x", "--patches", w.tmp / "mine", w.site(applied=True)],
)
simple(
    "H new of a file that is nobody's",
    2,
    "name a file such as vllm/NAME.py",
    lambda w: ["new", "x", "--file", "/etc/passwd", "--patches", w.tmp / "mine"],
)
simple(
    "H prune of a range from its end",
    2,
    "expected a range such as",
    lambda w: ["prune", "--dry-run", "--releases", "0.26.0..0.20.0", *_feature(w)[1:3]],
)
simple(
    "H edit of what cannot be an id",
    2,
    "overlay new ID --file",
    lambda w: ["edit", "gr\u00f6\u00dfe", *_feature(w)[1:3]],
)


def _session(w: World, text: str, old: str, new: str, words: list[str]) -> Arguments:
    assert old in text
    w.file("session/session.toml", text.replace(old, new, 1).encode())
    return [*words, w.tmp / "session"]


# Features


def _feature(w: World, patch: str = _PATCH, toml: str = "") -> Arguments:
    folder = write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": patch}, id="mine")
    if toml:
        (folder / "feature.toml").write_text(toml + (folder / "feature.toml").read_text())
    return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]


_LONG = {
    "300,000 lines of a header": _PATCH.replace("A test\n", "A test\n" + " more\n" * 300_000),
    "300,000 signatures": "Signed-off-by: a <a@b>\n" * 300_000 + _PATCH,
}
for _name, _text in _LONG.items():
    simple(f"H {_name}", 0, "pristine", lambda w, t=_text: _feature(w, t))

simple(
    "H 300,000 lines that are no header",
    2,
    "is neither a header",
    lambda w: _feature(w, "?\n" * 300_000 + _PATCH),
)
simple(
    "H a hunk at a line of 5,000 digits",
    2,
    "expected '@@ -line",
    lambda w: _feature(w, _PATCH.replace("-1,", f"-{'9' * 5000},", 1)),
)
simple(
    "H a key of 20,000 parts",
    2,
    "256 dots",
    lambda w: _feature(w, toml="a." * 20000 + "a=1\n"),
)
simple(
    "H a number of 5,000 digits",
    2,
    "is not TOML",
    lambda w: _feature(w, toml=f"required = {'9' * 5000}\n"),
)
simple(
    "H 20,000 unknown keys",
    2,
    "unknown key",
    lambda w: _feature(w, toml="".join(f"k{n} = 1\n" for n in range(20000))),
)


@row("H a switch of another's folders", 0, "1 feature")
def _switch(w: World) -> Arguments:
    """What is no switch hides no feature and brings none."""
    write_feature(w.tmp / "mine/.overlay-switch/new", {"files/vllm/mine.py": ""}, id="evil")
    write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
    shutil.rmtree(w.cli.shipped / "demo")
    return ["list", "--patches", w.tmp / "mine"]
