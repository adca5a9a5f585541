"""The JSON is the one that the design promises, key for key."""

import json
from pathlib import Path
from typing import Any

from packaging.version import Version

from overlay._features.folder import Hole
from overlay._features.model import AddedFile, Feature, Patch, Topic, Variant
from overlay.commands.check import CheckReport
from overlay.commands.list_ import ListReport
from overlay.commands.status import StatusReport
from overlay.package import ReleaseRange
from overlay.report import failure
from overlay.report.as_json import as_data, as_json
from overlay.report.codes import Code, Verdict
from overlay.report.lines import enumeration
from overlay.report.model import TargetReport
from overlay.results import FeatureResult, FileResult, HunkResult, Notice, Reason, State

PROPOSER = "vllm/v1/spec_decode/llm_base_proposer.py"


def listed_feature(text: str = "t") -> Feature:
    """A feature with a text wherever one can be foreign, and a topic with one variant."""
    first, last = Version("0.20.0"), Version("0.22.1")
    variant = Variant(ReleaseRange(first, last), Patch(text, text, {}, ()))
    topic = Topic("10-proposer" if text == "t" else text, (variant,))
    return Feature(
        "f" if text == "t" else text,
        *(text, text, text),
        ReleaseRange(first, Version("0.33.0")),
        (),
        (topic,),
        (AddedFile(text, b""),),
        origin=text,
        digest=text,
        needs=(text,),
        notices=(Notice(None, text),),
        obsolete_without=(text,),
    )


def target(**changes: Any) -> TargetReport:
    hunk = HunkResult("SpecDecodeBaseProposer.propose", State.PRISTINE, 571)
    file = FileResult(PROPOSER, State.PRISTINE, "draft-graphs/10-proposer/x.patch", (hunk,))
    feature = FeatureResult("draft-graphs", State.PRISTINE, (file,))
    plain: dict[str, Any] = {
        "target": "0.26.0",
        "vllm": "0.26.0",
        "root": None,
        "features": (feature,),
    }
    return TargetReport(**{**plain, **changes})


def test_the_example_of_the_design() -> None:
    report = CheckReport(Verdict(Code.CAN_BE_APPLIED, "Nothing needs you."), (target(),))
    assert json.loads(as_json(report)) == {
        "schema": 2,
        "command": "check",
        "exit": 0,
        "code": "can-be-applied",
        "verdict": "Nothing needs you.",
        "targets": [
            {
                "target": "0.26.0",
                "package": "vllm",
                "vllm": "0.26.0",
                "root": None,
                "state": "pristine",
                "applied": [],
                "interrupted": False,
                "warnings": [],
                "features": [
                    {
                        "feature": "draft-graphs",
                        "state": "pristine",
                        "files": [
                            {
                                "path": PROPOSER,
                                "state": "pristine",
                                "patch": "draft-graphs/10-proposer/x.patch",
                                "hunks": [
                                    {
                                        "scope": "SpecDecodeBaseProposer.propose",
                                        "state": "pristine",
                                        "line": 571,
                                        "reason": None,
                                        "next": None,
                                        "candidates": [],
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
    }


def test_an_error_stands_beside_the_exit_code() -> None:
    data = as_data(failure("check", "no vLLM here"))
    assert list(data) == ["schema", "command", "exit", "code", "error", "verdict", "targets"]
    assert data["exit"] == 2
    assert data["error"] == "no vLLM here"
    assert data["targets"] == []


def test_an_added_module_is_a_file_without_hunks() -> None:
    file = FileResult("vllm/v1/spec_decode/draft_graphs.py", State.APPLIED)
    feature = FeatureResult("draft-graphs", State.APPLIED, (file,))
    data = as_data(StatusReport(Verdict(Code.APPLIED, "."), target(features=(feature,))))
    assert data["targets"][0]["features"][0]["files"] == [
        {
            "path": "vllm/v1/spec_decode/draft_graphs.py",
            "state": "applied",
            "patch": None,
            "hunks": [],
        }
    ]


def test_what_there_is_to_say_of_a_feature_and_a_file_is_said() -> None:
    file = FileResult(PROPOSER, State.MISSING, "p", reason=Reason("no such file"))
    feature = FeatureResult(
        "f", State.MISSING, (file,), reason=Reason("two reasons", "do"), untested=True
    )
    data = as_data(CheckReport(Verdict(Code.NEEDS_ATTENTION, "."), (target(features=(feature,)),)))
    found = data["targets"][0]["features"][0]
    assert (found["reason"], found["next"], found["untested"]) == ("two reasons", "do", True)
    assert found["files"][0]["reason"] == "no such file"
    assert "variant" in found["files"][0]["next"]


def test_list_has_its_features_beside_no_targets() -> None:
    hole = Hole("10-proposer", "0.23.0")
    report = ListReport(Verdict(Code.HOLES, "."), (listed_feature(),), (("f", hole),))
    data = as_data(report)
    assert data["targets"] == []
    assert data["features"][0]["topics"] == [
        {"topic": "10-proposer", "variants": ["0.20.0..0.22.1"], "holes": ["0.23.0"]}
    ]


def test_odd_bytes_in_a_path_survive_as_ascii() -> None:
    text = as_json(
        CheckReport(Verdict(Code.CAN_BE_APPLIED, "."), (target(root=Path("/opt/\udcff\u00e9")),))
    )
    assert text.isascii()
    assert json.loads(text)["targets"][0]["root"] == "/opt/\udcff\u00e9"
    assert text.endswith("}\n")


def test_enumeration() -> None:
    assert enumeration([]) == ""
    assert enumeration(["a"]) == "a"
    assert enumeration(["a", "b"]) == "a and b"
    assert enumeration(["a", "b", "c"]) == "a, b and c"
    assert enumeration(list("abcdefgh"), most=4) == "a, b, c and 5 others"
