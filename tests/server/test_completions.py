"""/v1/completions through OpenAI's own client: prompts of every kind, and the older form of log-probabilities."""

from __future__ import annotations

import pytest

from outrider import SamplingParams
from tests.scripted import script

OPTIONS = {"model": "tiny", "max_tokens": 20, "temperature": 0}


def create(client, prompt, **options):
    return client.completions.create(**OPTIONS | {"prompt": prompt} | options)


def joined(client, prompt, index=0, **options):
    chunks = list(create(client, prompt, stream=True, **options))
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


@pytest.mark.parametrize("prompt", ["Hello", [72, 101, 108], ["Hello"], [[72, 101, 108]]])
def test_a_prompt_is_text_or_ids(client, library, prompt):
    raw = prompt[0] if isinstance(prompt[0], str | list) and isinstance(prompt, list) else prompt
    (expected,) = library.generate([raw], SamplingParams(max_tokens=20))
    answer = create(client, prompt)
    assert answer.object == "text_completion"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected.text, "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (expected.prompt_tokens, 20)
    assert joined(client, prompt) == expected.text


def test_several_prompts_have_n_texts_each_in_order(client, library):
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=4)
    expected = [
        [emitted.request for emitted in library.run([library.request(prompt, params, choice=choice)])][-1].text
        for prompt in ("One", "Two")
        for choice in range(2)
    ]
    options = {"temperature": 1, "seed": 4, "n": 2}
    answer = create(client, ["One", "Two"], **options)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 6
    assert [joined(client, ["One", "Two"], index, **options) for index in range(4)] == expected


def test_a_text_has_sixteen_tokens_unless_more_are_asked_for(client):
    """OpenAI's default."""
    answer = client.completions.create(model="tiny", prompt="Hello", temperature=0)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_logprobs_have_their_older_form(client, library):
    (expected,) = library.generate(["Hello"], SamplingParams(max_tokens=20, logprobs=3))
    logprobs = create(client, "Hello", logprobs=3).choices[0].logprobs
    assert logprobs.token_logprobs == pytest.approx([entry.chosen for entry in expected.logprobs])
    assert [len(top) for top in logprobs.top_logprobs] == [3] * 20, "greedy: the token is one of them"
    assert all(
        top[token] == logprob
        for token, top, logprob in zip(logprobs.tokens, logprobs.top_logprobs, logprobs.token_logprobs, strict=True)
    ), "greedy: each token is the most probable one"
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    streamed = [
        choice.logprobs for chunk in create(client, "Hello", logprobs=3, stream=True) for choice in chunk.choices
    ]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [each for part in streamed if part for each in getattr(part, field)] == getattr(logprobs, field)


def test_the_token_that_was_drawn_is_among_the_most_probable_ones(client):
    """OpenAI: so there may be one more than were asked for."""
    logprobs = create(client, "Hello", logprobs=1, temperature=2, seed=1).choices[0].logprobs
    entries = list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True))
    assert all(top[token] == logprob for token, logprob, top in entries)
    assert {len(top) for _, _, top in entries} == {1, 2}


def test_offsets_count_characters_that_lie_across_tokens(scripted):
    text = "世界 and 😀 ok"
    law = script([*text.encode(), 268], 269)
    body = {"prompt": [1], "max_tokens": 50, "temperature": 0, "logprobs": 0}
    choice = scripted(law).post("/v1/completions", **body).json()["choices"][0]
    assert choice["text"] == text
    begins = [place for place, letter in enumerate(text) for _ in letter.encode()]
    assert choice["logprobs"]["text_offset"] == [*begins, len(text)]
