"""Bad patches folders (group F)."""

# mypy types no lambda with a default, and each row of a loop has one.
# mypy: disable-error-code="misc"

from __future__ import annotations

from tests.commands.bad_inputs.table import Arguments, World, row, simple
from tests.support.cli import PROPOSER, RUNNER
from tests.support.patches import hunk, patch_text, write_feature

_GOOD = patch_text(
    PROPOSER, hunk(["         self.model = None", "+        self.x = 1"], "<module>")
)


def _patch(name: str, exit_: int, word: str, text: str, *, file: str = "") -> None:
    """A row with a feature that has this patch."""
    path = file or "10-a/0.20.0..0.33.0.patch"

    def make(w: World) -> Arguments:
        write_feature(w.tmp / "mine", {path: text}, id="mine")
        return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]

    simple(f"F {name}", exit_, word, make)


_at = "@@ -1,1 +1,2 @@ <module>"
assert _at in _GOOD
_patch("nonsense", 2, "0.20.0..0.33.0.patch:1", "nonsense\n")
_patch("empty", 2, ".patch", "")
_patch("no Description", 2, "Description", _GOOD.replace("Description: A test\n", ""))
_patch("no Origin", 2, "Origin", _GOOD.replace("Origin: the tests\n", ""))
_patch("no Last-Update", 2, "Last-Update", _GOOD.replace("Last-Update: 2026-11-20\n", ""))
_patch("no hunk", 2, ".patch", _GOOD[: _GOOD.index("@@")])
_patch("no scope", 2, "scope", _GOOD.replace(_at, "@@ -1,1 +1,2 @@"))
_patch("def in the scope", 2, "scope", _GOOD.replace(_at, f"{_at[:-8]}def propose(self)"))
_patch("old count", 2, "the hunk has", _GOOD.replace("-1,1", "-1,3"))
_patch("new count", 2, "the hunk has", _GOOD.replace("+1,2", "+1,5"))
_patch("path upwards", 2, "..", _GOOD.replace(PROPOSER, "vllm/../evil.py"))
_patch("path absolute", 2, "/etc/x.py", _GOOD.replace(f"a/{PROPOSER}", "/etc/x.py"))
_patch("path outside", 2, "outside vllm/", _GOOD.replace(PROPOSER, "other/x.py"))
_patch(
    "path no module", 2, "neither a module nor a data file", _GOOD.replace(PROPOSER, "vllm/x.so")
)
_patch("two paths", 2, "renames", _GOOD.replace(f"+++ b/{PROPOSER}", f"+++ b/{RUNNER}"))
_patch("new file", 2, "creates a file", _GOOD.replace(f"--- a/{PROPOSER}", "--- /dev/null"))
_patch(
    "two files",
    2,
    "a second file begins",
    _GOOD + _GOOD[_GOOD.index("---") :].replace(PROPOSER, RUNNER),
)
_patch(
    "nothing changes",
    2,
    "changes nothing",
    _GOOD.replace("+        self.x = 1", "         self.x = 1"),
)
_patch("line of 5,000 digits", 2, "expected '@@", _GOOD.replace("@@ -1", f"@@ -{'9' * 5000}"))
_patch(
    "Base of 20,000 lines",
    2,
    "Base",
    _GOOD.replace("\n\n", "\nBase: x" + "\n x" * 20_000 + "\n\n", 1),
)
_patch("unknown line", 2, "found '?", _GOOD.replace("+        self.x", "?        self.x"))
_patch("tab first", 2, "tab", _GOOD.replace("+        self.x", "\t        self.x"))
_patch("a NUL in a header", 0, "pristine", _GOOD.replace("A test", "\0"))
_patch("range beyond", 2, "range", _GOOD, file="10-a/0.20.0..0.40.0.patch")
_patch("range reversed", 2, "ends before it begins", _GOOD, file="10-a/0.30.0..0.20.0.patch")
_patch("range open", 2, "range", _GOOD, file="10-a/0.20.0...patch")
_patch("range rc", 2, "pre-release", _GOOD, file="10-a/0.20.0rc1..0.33.0.patch")
_patch("range single", 2, "range", _GOOD, file="10-a/0.20.0.patch")
_patch("topic name", 2, "topic", _GOOD, file="first/0.20.0..0.33.0.patch")
_patch("no such scope", 1, "NoSuchClass", _GOOD.replace("<module>", "NoSuchClass.method"))
_patch("drift", 1, "drifted", _GOOD.replace("self.model = None", "self.model = 17"))
_patch(
    "no Python afterwards", 1, "Python", _GOOD.replace("+        self.x = 1", "+        self.x = (")
)


_patch("CRLF", 0, "pristine", _GOOD.replace("\n", "\r\n"))
_patch("the tail of git format-patch", 0, "pristine", f"{_GOOD}-- \n2.43.0\n\n")
_patch("a byte-order mark", 2, "byte-order mark", f"\ufeff{_GOOD}")


def _toml(name: str, exit_: int, word: str, old: str, new: str) -> None:
    """A row with a feature whose ``feature.toml`` is changed."""

    def make(w: World) -> Arguments:
        folder = write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
        text = (folder / "feature.toml").read_text()
        assert old in text
        (folder / "feature.toml").write_text(text.replace(old, new, 1))
        return ["list", "--patches", w.tmp / "mine"]

    simple(f"F toml {name}", exit_, word, make)


_toml("syntax", 1, "feature.toml", 'id = "mine"', "id = ")
_toml("no id", 1, "id", 'id = "mine"\n', "")
_toml("other id", 1, "mine", 'id = "mine"', 'id = "other"')
_toml("id with a space", 1, "id", 'id = "mine"', 'id = "my feature"')
_toml("id a number", 1, "id", 'id = "mine"', "id = 5")
_toml("no title", 1, "title", 'title = "A test"\n', "")
_toml("no why", 1, "why", 'why = "To test."\n', "")
_toml("unknown key", 1, "nonsense", 'why = "To', 'nonsense = 1\nwhy = "To')
_toml("title a list", 1, "title", 'title = "A test"', 'title = ["A test"]')
_toml("a byte-order mark", 0, "mine", 'id = "mine"', '\ufeffid = "mine"')
_toml("range", 1, "0.20.0..", '"0.20.0..0.33.0"', '"0.20.0.."')
_toml("shared, not there", 1, "shared/files", 'why = "To', 'shared = ["vllm/no.py"]\nwhy = "To')
_toml("shared, elsewhere", 1, "'..' in it", 'why = "To', 'shared = ["../x.py"]\nwhy = "To')
_toml("upstream no URL", 1, "upstream", '"https://example.invalid/1"', '"nothing"')


def _added(name: str, exit_: int, word: str, path: str, content: str | bytes = "") -> None:
    """A row with a feature that adds this file."""

    def make(w: World) -> Arguments:
        write_feature(w.tmp / "mine", {path: content}, id="mine")
        return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]

    simple(f"F added {name}", exit_, word, make)


_added("outside", 2, "outside vllm/", "files/other/x.py")
_added("pth", 2, "nor a data file", "files/vllm/x.pth")
_added("syntax error", 1, "mine/files/vllm/x.py", "files/vllm/x.py", "def (:\n")
_added("over a file", 1, "not overwritten", f"files/{RUNNER}", "x = 1\n")
_added("not UTF-8", 1, "vllm/x.py", "files/vllm/x.py", b"x = '\xff'\n")


@row("F a feature called shared", 1, "another id than shared")
def _called_shared(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
    write_feature(w.tmp / "mine", {"files/vllm/yours.py": ""}, id="shared")
    return ["list", "--patches", w.tmp / "mine"]


@row("F two features of one id", 1, "already defined")
def _twice(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="demo")
    return ["list", "--patches", w.tmp / "mine"]


@row("F overlap", 1, "overlaps")
def _overlap(w: World) -> Arguments:
    files = {"10-a/0.20.0..0.25.0.patch": _GOOD, "10-a/0.24.0..0.33.0.patch": _GOOD}
    write_feature(w.tmp / "mine", files, id="mine")
    return ["list", "--patches", w.tmp / "mine"]


@row("F hole", 1, "hole")
def _hole(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"10-a/0.20.0..0.25.0.patch": _GOOD}, id="mine")
    return ["list", "--patches", w.tmp / "mine"]


@row("F no feature.toml", 2, "feature.toml")
def _no_toml(w: World) -> Arguments:
    w.file("mine/feature/10-a/x.patch", b"")
    return ["list", "--patches", w.tmp / "mine"]


@row("F feature.toml not UTF-8", 1, "UTF-8")
def _toml_bytes(w: World) -> Arguments:
    w.file("mine/feature/feature.toml", b'id = "\xff"\n')
    return ["list", "--patches", w.tmp / "mine"]


for _stray in (".DS_Store", "x.patch~", "x.orig", ".x.swp"):
    simple(
        f"F stray {_stray}",
        0,
        _stray,
        lambda w, s=_stray: _strayed(w, s),
    )


def _strayed(w: World, stray: str) -> Arguments:
    folder = write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": _GOOD}, id="mine")
    (folder / "10-a" / stray).write_text("stray")
    return ["check", "--patches", w.tmp / "mine", w.site()]


@row("F stray notes.txt", 1, "expected only <first>..<last>.patch files")
def _notes(w: World) -> Arguments:
    return _strayed(w, "notes.txt")


@row("F feature.toml a folder", 1, "feature.toml")
def _toml_folder(w: World) -> Arguments:
    (w.tmp / "mine/feature/feature.toml").mkdir(parents=True)
    return ["list", "--patches", w.tmp / "mine"]


@row("F same lines twice", 1, "touch the same lines")
def _clash(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": _GOOD}, id="mine")
    third = [
        "-        self.model = None",
        "+        self.model = 2",
        " ",
        "     def load_model(self, target) -> None:",
    ]
    second = patch_text(PROPOSER, hunk(third, "<module>"))
    write_feature(w.tmp / "mine", {"10-b/0.20.0..0.33.0.patch": second}, id="other")
    return ["check", "--patches", w.tmp / "mine", w.site()]


def _toml(name: str, word: str, text: str) -> None:
    """A row with a feature.toml that begins with this text; the other features are checked."""

    def make(w: World) -> Arguments:
        folder = write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": _GOOD}, id="mine")
        toml = folder / "feature.toml"
        toml.write_text(f"{text}\n{toml.read_text()}")
        return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]

    simple(f"F toml: {name}", 2, word, make)


_toml("a number of 5,000 digits", "it is not TOML", f"required = {'9' * 5000}")
_toml("the same in sixteens", "more than 64 bits", f"required = 0x{'f' * 5000}")
_toml("a key of 20,000 parts", "dots in a line", f"a{'.a' * 20_000} = 1")
_toml("deep brackets", "mine/feature.toml", f"required = {'[' * 100_000}")
_toml("a range of 4,500 digits", "is not a release", f'merged = "{"9" * 4500}"')
_toml("a date", "expected true or false", "required = 1979-05-27")
