"""What ships is used for the very file that it was made for, and for no other; a folder brings what it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.drafts import FOLLOWERS, MODEL, Draft, find, made_for, shipped
from outrider.errors import ModelFileError
from outrider.heads import load
from outrider.heads.checkpoint import write_compact
from outrider.policy.costs import FREE
from outrider.tokenizer import Message
from outrider.weights import followers
from tests.heads.tiny_head import tiny_head
from tests.tables import table, table_folder
from tests.tiny import default_model, tiny_llama


def test_what_ships_is_found_by_size_and_content(tmp_path: Path) -> None:
    target, other, longer = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"
    target.write_bytes(b"one model")
    other.write_bytes(b"two model")
    longer.write_bytes(b"one model more")
    assert shipped(target, tmp_path / "nothing") == Draft()
    folder = tmp_path / "shipped"
    folder.mkdir()
    head = replace(load(tiny_head(tmp_path / "head")), metadata=made_for(target))
    write_compact(head, folder / "head.safetensors")
    assert shipped(target, folder) == Draft(folder / "head.safetensors")
    followers.save(table(), folder / "table.safetensors", made_for(target))
    assert shipped(target, folder) == Draft(folder / "head.safetensors", folder / "table.safetensors")
    assert shipped(other, folder) == shipped(longer, folder) == Draft()
    assert load(folder / "head.safetensors").metadata == made_for(target)


def test_files_of_some_megabytes_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abcd"]
    for path, at in zip(paths, (0, 2**20, 3 * 2**20 - 1, None), strict=True):
        content = bytearray(3 * 2**20)
        if at is not None:
            content[at] = 1
        path.write_bytes(content)
    ends = [made_for(path)["target_ends_sha256"] for path in paths]
    assert len(set(ends)) == 3
    assert ends[1] == ends[3]  # in between it may differ


def test_a_folder_brings_what_it_has(tmp_path: Path) -> None:
    target = tmp_path / "t.gguf"
    target.write_bytes(b"a model")
    folder = tmp_path / "draft"
    folder.mkdir()
    assert find(folder, target) == Draft(folder)  # whoever opens it says what is missing
    (folder / FOLLOWERS).touch()
    assert find(folder, target) == Draft(None, folder / FOLLOWERS)
    (folder / "config.json").touch()
    assert find(folder, target) == Draft(folder, folder / FOLLOWERS)
    (folder / MODEL).touch()
    assert find(folder, target) == Draft(folder / MODEL, folder / FOLLOWERS)


@pytest.mark.parametrize("name", ["draft", "head.safetensors", "draft.gguf"])
def test_a_draft_below_the_users_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    target, draft = tmp_path / "t.gguf", tmp_path / name
    target.write_bytes(b"a model")
    if draft.suffix:
        draft.touch()
    else:
        draft.mkdir()
    assert find(f"~/{name}", target) == Draft(draft)


def test_a_table_drafts_and_the_text_is_the_plain_one(tmp_path: Path) -> None:
    model, params = tiny_llama(tmp_path / "t.gguf"), SamplingParams(max_tokens=40, ignore_eos=True)
    plain = LLM(model, threads=1, costs=FREE, speculation="off").generate("one", params)[0]
    folder = table_folder(tmp_path / "draft", plain.token_ids)
    without, drafted = (
        LLM(model, threads=1, costs=FREE, draft=draft).generate("one", params)[0] for draft in (None, folder)
    )
    assert plain.token_ids == without.token_ids == drafted.token_ids
    assert drafted.drafters == ("suffix",)
    assert drafted.steps < without.steps


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: replace(t, parts={2: t.parts[2], 1: t.parts[1]}), "tensor '3.keys' is missing"),
        (lambda t: table({5: 300}), r"'1.tokens' holds 300, expected 0 to 259"),
        (lambda t: table({5: -1}), r"'1.tokens' holds -1"),
        (lambda t: replace(t, parts={**t.parts, 1: (t.parts[1][0][::-1].copy(), *t.parts[1][1:])}), "ascending"),
        (lambda t: replace(t, parts={**t.parts, 1: (t.parts[1][0][1:], *t.parts[1][1:])}), "do not agree"),
        (lambda t: replace(t, parts={**t.parts, 2: (t.parts[1][1], *t.parts[1][1:])}), r"'2.keys' is I64 \[2, 8\]"),
    ],
)
def test_a_broken_table_is_refused_by_name(tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / FOLLOWERS
    followers.save(table({5: 6, 7: 8}), path, {})
    assert followers.load(path, 260).parts[1][0].tolist() == [5, 7]
    followers.save(change(table({5: 6, 7: 8})), path, {})
    with pytest.raises(ModelFileError, match=said):
        followers.load(path, 260)


def test_another_file_is_no_table(tmp_path: Path) -> None:
    head = load(tiny_head(tmp_path / "head"))
    write_compact(head, tmp_path / "head.safetensors")
    with pytest.raises(ModelFileError, match="its format is 'outrider-eagle3', expected 'outrider-followers'"):
        followers.load(tmp_path / "head.safetensors", 260)


def test_what_ships_for_the_default_model_is_used() -> None:
    if (path := default_model()) is None:
        pytest.skip("the default model is not on this machine")
    draft = shipped(path)
    assert draft.followers is not None
    assert [len(keys) > 10_000 for keys, _, _ in followers.load(draft.followers, 49_152).parts.values()] == [True] * 3
    question: Message = {"role": "user", "content": "Tell me a story."}
    plain, drafted = (
        LLM(path, costs=FREE, speculation=who).generate([[question]], SamplingParams(max_tokens=24))[0]
        for who in ("off", "auto")
    )
    assert plain.token_ids == drafted.token_ids
    assert drafted.steps < plain.steps - 4  # though nothing has been repeated yet
