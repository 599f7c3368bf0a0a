"""/v1/chat/completions through OpenAI's own client: every parameter, in one piece and as a stream."""

from __future__ import annotations

import json
from itertools import groupby

import openai
import pydantic
import pytest

from outrider import SamplingParams

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
SHORT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}


def whole(client, **options):
    return client.chat.completions.create(**SHORT | options)


def streamed(client, **options):
    """The chunks, after what holds of every stream."""
    chunks = list(client.chat.completions.create(**SHORT | options, stream=True))
    for index in {choice.index for chunk in chunks for choice in chunk.choices}:
        mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert mine[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason, "the last chunk of a choice has its reason"
        assert mine[-1].delta.content is None, "no text after it, or with it"
    return chunks


def joined(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


def expect(library, **params):
    """What the library itself says."""
    return library.chat(MESSAGES, SamplingParams(**{"max_tokens": 24} | params))


PARAMETERS = [
    ({}, {}),
    ({"temperature": 1.3, "seed": 5}, {"temperature": 1.3, "seed": 5}),
    ({"temperature": 1, "seed": 5, "top_p": 0.5}, {"temperature": 1, "seed": 5, "top_p": 0.5}),
    ({"max_tokens": openai.omit, "max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"max_completion_tokens": 24}, {}),
    ({"logit_bias": {"104": 100}}, {"logit_bias": {104: 100}}),
    ({"presence_penalty": 2.0}, {"presence_penalty": 2.0}),
    ({"frequency_penalty": -1.5}, {"frequency_penalty": -1.5}),
    ({"stop": "t"}, {"stop": ("t",)}),
    ({"stop": ["zzz", "BN"]}, {"stop": ("zzz", "BN")}),
    ({"extra_body": {"top_k": 3, "seed": 2, "temperature": 1}}, {"top_k": 3, "seed": 2, "temperature": 1}),
    ({"extra_body": {"top_k": -1}}, {}),
    ({"extra_body": {"min_p": 0.3, "seed": 2, "temperature": 1}}, {"min_p": 0.3, "seed": 2, "temperature": 1}),
    ({"extra_body": {"repetition_penalty": 1.7}}, {"repetition_penalty": 1.7}),
    ({"extra_body": {"stop_token_ids": [116]}}, {"stop_token_ids": (116,)}),
    ({"logit_bias": {"268": 100}, "extra_body": {"ignore_eos": True}}, {"logit_bias": {268: 100}, "ignore_eos": True}),
    ({"extra_body": {"speculation": "off"}}, {}),
    ({"extra_body": {"speculation": "auto"}}, {}),
    ({"extra_body": {"speculation": "suffix"}}, {}),
    ({"extra_body": {"speculation": 2}}, {}),
    ({"extra_body": {"speculation": "suffix:3"}}, {}),
    ({"extra_body": {"cache_prompt": False}}, {}),
    ({"prediction": {"type": "content", "content": "Hello there"}}, {}),
    ({"response_format": {"type": "text"}}, {}),
    ({"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "params"), PARAMETERS, ids=[str(options)[:60] for options, _ in PARAMETERS])
def test_each_parameter_does_what_it_does_in_the_library(client, library, options, params):
    expected = expect(library, **params)
    answer = whole(client, **options)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == expected.completion_tokens
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert joined(streamed(client, **options)) == (expected.text, expected.finish_reason)


def test_the_parameters_above_change_the_text(library):
    """Negative control: a parameter that is dropped would be seen."""
    plain = expect(library)
    same = [params for _, params in PARAMETERS if params and expect(library, **params).token_ids == plain.token_ids]
    assert same == []


def test_without_a_temperature_texts_are_drawn(client):
    """OpenAI's default is 1, not greedy."""
    options = {"temperature": openai.omit}
    assert len({whole(client, **options).choices[0].message.content for _ in range(4)}) > 1


def test_without_a_limit_a_text_goes_on_to_the_end_of_the_context(client, library):
    answer = whole(client, messages=[{"role": "user", "content": "x" * 4000}], max_tokens=openai.omit)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == library.context_length


@pytest.mark.parametrize("options", [{"temperature": 1, "seed": 3}, {"temperature": 1}, {}])
def test_n_texts_are_numbered_and_their_usage_is_summed(client, options):
    answer = whole(client, n=3, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == (3 if "temperature" in options else 1)
    assert answer.usage.completion_tokens == 72
    chunks = streamed(client, n=3, stream_options={"include_usage": True}, **options)
    if "temperature" not in options or "seed" in options:
        assert [joined(chunks, index)[0] for index in range(3)] == texts
    assert chunks[-1].usage.model_dump() == answer.usage.model_dump()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("options", "reason"), [({}, "length"), ({"stop": "t"}, "stop"), ({"logit_bias": {"268": 100}}, "stop")]
)
def test_usage_comes_last_and_once(client, n, options, reason):
    """B135: with include_usage a chunk without choices ends the stream; every finish reason is spelt as in the whole."""
    chunks = streamed(client, n=n, stream_options={"include_usage": True}, **options)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    answer = whole(client, n=n, **options)
    assert chunks[-1].usage.model_dump() == answer.usage.model_dump()
    assert [choice.finish_reason for choice in answer.choices] == [reason] * n
    assert [joined(chunks, index)[1] for index in range(n)] == [reason] * n
    assert not any(chunk.usage for chunk in streamed(client, n=n, **options))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 5, "max_tokens": openai.omit}, 5),
     ({"max_completion_tokens": 5, "max_tokens": 5}, 5)],
)  # fmt: skip
def test_both_names_of_the_limit_are_honoured(client, limits, expected):
    """B136: and the reason is "length"."""
    answer = whole(client, **limits)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (expected, "length")


def test_logprobs_are_those_of_the_library(client, library):
    """B48, B69, B130: one entry per token, equal with and without a stream, and with and without drafts."""
    expected = expect(library, logprobs=2)
    for speculation in ("auto", "off"):
        options = {"logprobs": True, "top_logprobs": 2, "extra_body": {"speculation": speculation}}
        content = whole(client, **options).choices[0].logprobs.content
        assert [entry.logprob for entry in content] == pytest.approx([entry.chosen for entry in expected.logprobs])
        assert [len(entry.top_logprobs) for entry in content] == [2] * 24
        assert b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace") == expected.text
        deltas = [choice for chunk in streamed(client, **options) for choice in chunk.choices if choice.logprobs]
        assert [entry for choice in deltas for entry in choice.logprobs.content] == content


def test_logprobs_end_where_the_text_is_cut(client, library):
    expected = expect(library, stop=("t",), logprobs=0)
    answer = whole(client, stop="t", logprobs=True)
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens == len(expected.token_ids) < 24
    assert answer.choices[0].logprobs.content[0].top_logprobs == []


def test_a_control_token_is_named_in_the_logprobs(client):
    answer = whole(client, logit_bias={"268": 100}, logprobs=True)
    assert [(entry.token, entry.bytes) for entry in answer.choices[0].logprobs.content] == [("<|im_end|>", [])]
    assert answer.choices[0].message.content == ""


def test_sources_are_told_if_asked_for(client):
    answer = whole(client, extra_body={"return_sources": True}, max_tokens=200)
    sources = answer.choices[0].sources
    assert len(sources) == answer.usage.completion_tokens
    assert set(sources) <= {"plain", "accepted", "recovered", "bonus"}
    chunks = streamed(client, extra_body={"return_sources": True}, max_tokens=200)
    told = [source for chunk in chunks for choice in chunk.choices for source in getattr(choice, "sources", ())]
    assert told == sources
    assert not hasattr(whole(client).choices[0], "sources")
    off = whole(client, extra_body={"return_sources": True, "speculation": "off"})
    assert set(off.choices[0].sources) == {"plain"}


@pytest.mark.parametrize(
    ("speculation", "longest"), [("off", [0]), (1, [1]), (2, [2]), ("suffix:3", [3]), ("suffix", range(4, 100))]
)
def test_no_more_is_drafted_than_was_asked_for_and_no_less(client, speculation, longest):
    """In a text of one letter, every draft is right."""
    extra = {"return_sources": True, "speculation": speculation}
    answer = whole(client, max_tokens=60, logit_bias={"104": 100}, extra_body=extra)
    assert answer.choices[0].message.content == "h" * 60
    runs = [len(list(run)) for source, run in groupby(answer.choices[0].sources) if source == "accepted"]
    assert max(runs, default=0) in longest


ASCII = {str(token): -100 for token in range(128, 261)}
"""Keeps away what is no text by itself: a random model's bytes are seldom UTF-8."""


def steps(answer):
    """Each ends with a token that nobody drafted, but for one that ends the text before it."""
    *sources, _ = answer.choices[0].sources
    return sum(source != "accepted" for source in sources) + 1


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}


class TestResponseFormat:
    """The text is what the schema says, with drafts and without."""

    @pytest.mark.parametrize("speculation", ["auto", "off", 4])
    @pytest.mark.parametrize("options", [{}, {"temperature": 1, "seed": 3}])
    def test_a_schema_is_kept(self, client, options, speculation):
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
        options = options | {"max_tokens": 60, "response_format": form, "extra_body": {"speculation": speculation}}
        answer = whole(client, **options)
        assert answer.choices[0].finish_reason == "stop"
        value = json.loads(answer.choices[0].message.content)
        assert value["colour"] in ("red", "green")
        assert isinstance(value["sure"], bool)
        assert joined(streamed(client, **options)) == (answer.choices[0].message.content, "stop")
        plain = whole(client, **options | {"extra_body": {"speculation": "off"}})
        assert plain.choices[0].message.content == answer.choices[0].message.content

    def test_what_must_come_is_drafted(self, client):
        form = {"type": "json_schema", "json_schema": {"schema": {"const": {"a": "b" * 40}}}}
        answer = whole(client, max_tokens=90, response_format=form, extra_body={"return_sources": True})
        assert json.loads(answer.choices[0].message.content) == {"a": "b" * 40}
        assert steps(answer) < answer.usage.completion_tokens / 2

    def test_any_object_is_one(self, client):
        answer = whole(client, max_tokens=300, response_format={"type": "json_object"})
        text = answer.choices[0].message.content
        assert text.lstrip().startswith("{")
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)

    def test_openais_client_parses_it(self, client):
        class Answer(pydantic.BaseModel):
            sure: bool

        answer = client.chat.completions.parse(**SHORT, response_format=Answer)
        assert isinstance(answer.choices[0].message.parsed, Answer)


class TestPrediction:
    """OpenAI's Predicted Outputs."""

    def test_a_right_prediction_is_taken_up_and_saves_steps(self, client):
        options = {"max_tokens": 100, "logit_bias": ASCII, "extra_body": {"return_sources": True}}
        plain = whole(client, **options)
        text = plain.choices[0].message.content
        answer = whole(client, **options, prediction={"type": "content", "content": text})
        assert answer.choices[0].message.content == text
        details = answer.usage.completion_tokens_details
        predicted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
        assert details.accepted_prediction_tokens >= 0.9 * predicted > 80
        assert steps(answer) < steps(plain) / 3

    def test_it_saves_nothing_where_speculation_is_off(self, client):
        options = {"max_tokens": 100, "logit_bias": ASCII}
        text = whole(client, **options).choices[0].message.content
        extra = {"return_sources": True, "speculation": "off"}
        answer = whole(client, **options, prediction={"type": "content", "content": text}, extra_body=extra)
        assert steps(answer) == 100

    def test_a_wrong_one_changes_nothing(self, client):
        options = {"prediction": {"type": "content", "content": [{"type": "text", "text": "wrong"}]}}
        answer = whole(client, **options)
        assert answer.choices[0].message.content == whole(client).choices[0].message.content
        details = answer.usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 5)

    def test_without_one_drafts_are_none_of_its_tokens(self, client):
        """B137."""
        details = whole(client, max_tokens=200).usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)


def test_parts_of_a_message_are_joined_and_a_developer_is_a_system(client):
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]  # fmt: skip
    assert whole(client, messages=messages).choices[0].message.content == whole(client).choices[0].message.content


def test_the_answer_looks_like_openais(server):
    answer = server.post(**SHORT).json()
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    response = server.post(**SHORT, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["object"] == "chat.completion.chunk"
    assert {json.loads(each.removeprefix("data: "))["id"] for each in events[:-2]} == {first["id"]}
    assert first["id"] != answer["id"]


def test_the_models_are_listed(server, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "outrider"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("gpt-4")
    assert server.get("/health").json()["status"] == "ok"


def test_what_was_read_before_is_counted_unless_it_is_not_to_be_used(client):
    """The prefix cache; a request may stand aside, and has the same text."""
    messages = [{"role": "user", "content": "A text that is long enough to fill some blocks of the cache. " * 4}]
    first = whole(client, messages=messages)
    again = whole(client, messages=messages)
    alone = whole(client, messages=messages, extra_body={"cache_prompt": False})
    assert again.usage.prompt_tokens_details.cached_tokens > 100
    assert alone.usage.prompt_tokens_details.cached_tokens == 0
    texts = {answer.choices[0].message.content for answer in (first, again, alone)}
    assert len(texts) == 1
