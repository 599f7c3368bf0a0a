"""What a body may hold: everything is honoured, or neutral, or refused by name; nothing is dropped silently."""

from __future__ import annotations

import json

import openai.types.chat as openai_chat
import openai.types.chat.completion_create_params as openai_chat_request
import openai.types.completion_create_params as openai_text_request
import pydantic
import pytest

from outrider.server.schemas import ChatMessage, ChatRequest, CompletionRequest, Prediction, StreamOptions, TextPart
from outrider.server.settings import MAX_STOPS
from outrider.tokenizer import Tokenizer

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT = {"prompt": "Hi", "max_tokens": 2}


def refused(response):
    """The error of a 400, after what holds of each."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


NEUTRAL = {
    "tools": [None, []], "tool_choice": [None, "none", "auto"], "parallel_tool_calls": [None, True, False],
    "functions": [None, []], "function_call": [None, "none", "auto"], "modalities": [None, ["text"]], "audio": [None],
    "web_search_options": [None], "reasoning_effort": [None, "none"], "verbosity": [None, "medium"],
    "response_format": [None, {"type": "text"}], "prediction": [None], "stop": [None, []], "logit_bias": [None, {}],
    "n": [None, 1], "temperature": [None], "top_p": [None, 1, 1.0], "seed": [None], "logprobs": [None, False],
    "top_logprobs": [None, 0], "stream": [None, False], "stream_options": [None], "presence_penalty": [None, 0],
    "frequency_penalty": [None, 0], "max_completion_tokens": [None, 2], "user": [None, "me"], "metadata": [None, {}],
    "store": [None, False, True], "service_tier": [None, "auto"], "top_k": [None, 0, -1], "min_p": [None, 0],
    "repetition_penalty": [None, 1], "ignore_eos": [None, False], "min_tokens": [None, 0], "model": [None, "tiny"],
    "stop_token_ids": [None, []], "speculation": [None, "auto"], "return_sources": [None, False],
    "safety_identifier": ["x"], "prompt_cache_key": ["x"], "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [None, {"ttl": "30m"}], "moderation": [None],
}  # fmt: skip


@pytest.mark.parametrize("field", NEUTRAL)
def test_neutral_values_are_fine(server, field):
    """Real clients send such bodies."""
    expected = server.post(**CHAT, temperature=0).json()["choices"]
    for value in NEUTRAL[field]:
        response = server.post(**({"temperature": 0} | CHAT | {field: value}))
        assert response.status_code == 200, response.text
        if field != "temperature":
            assert response.json()["choices"] == expected


REFUSED = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "magic"}}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 70_000]}}}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"colour": "red"}, "colour"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": CHAT["messages"] * 2049}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 257}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].type"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 1e-9}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 2.0}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"0104": 1}}, "logit_bias.0104"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"stop_token_ids": [999_999]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"speculation": "magic"}, "speculation"),
    ({"speculation": -1}, "speculation"),
    ({"speculation": 9}, "speculation"),  # more than a step may draft
    ({"speculation": "suffix:9"}, "speculation"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "guess", "content": "x"}}, "prediction.type"),
    ({"user": "x", "userr": "y"}, "userr"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"), REFUSED, ids=[f"{param} {number}" for number, (_, param) in enumerate(REFUSED)]
)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, param):
    """B139 among them: an id outside the vocabulary costs its own request alone."""
    error = refused(send(server, "/v1/chat/completions", CHAT | fields))
    assert error["param"] == param
    assert param.partition("[")[0].partition(".")[0] in error["message"] or "JSON schema" in error["message"]


MANY = 100_000


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [1] * MANY},
        {"messages": [CHAT["messages"][0] | {"content": [1] * MANY}]},
        {"messages": [CHAT["messages"][0] | {f"a{i}": 1 for i in range(MANY)}]},
        {"stop_token_ids": ["a"] * MANY},
        {"stop": [1] * MANY},
        {"logit_bias": {f"a{i}": "b" for i in range(MANY)}},
        {f"a{i}": 1 for i in range(MANY)},
    ],
    ids=range(7),
)
def test_a_body_that_is_wrong_all_over_has_few_errors(fields):
    """Each costs a kilobyte or more, and all of them are made while nobody else is served."""
    with pytest.raises(pydantic.ValidationError) as caught:
        ChatRequest.model_validate(CHAT | fields)
    assert caught.value.error_count() <= 2 * MAX_STOPS


def test_a_long_list_is_left_where_it_is_too_long(server, monkeypatch):
    """Messages are read, and put into the template, only if there are not too many."""
    monkeypatch.setattr(Tokenizer, "render_chat", None)
    error = refused(server.post(**CHAT | {"messages": CHAT["messages"] * MANY}))
    assert (error["param"], error["code"]) == ("messages", "invalid_value")
    assert len(error["message"]) < 300


def annotations(*types):
    return {name for type in types for name in type.__annotations__}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (ChatRequest, annotations(openai_chat_request.CompletionCreateParamsBase)),
        (CompletionRequest, annotations(openai_text_request.CompletionCreateParamsBase)),
        (TextPart, annotations(openai_chat.ChatCompletionContentPartTextParam)),
        (StreamOptions, annotations(openai_chat.ChatCompletionStreamOptionsParam)),
        (Prediction, annotations(openai_chat.ChatCompletionPredictionContentParam)),
        (
            ChatMessage,
            annotations(
                openai_chat.ChatCompletionDeveloperMessageParam,
                openai_chat.ChatCompletionSystemMessageParam,
                openai_chat.ChatCompletionUserMessageParam,
                openai_chat.ChatCompletionAssistantMessageParam,
            ),
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_every_field_that_openais_client_knows_is_accepted_or_refused_on_purpose(body, names):
    """`Only` is such a refusal; a field that OpenAI adds is unknown here until somebody has thought about it."""
    assert len(names) >= 2
    assert names <= set(body.model_fields)


def test_a_part_of_a_message_may_mark_what_is_to_be_cached(server):
    part = {"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"ttl": "30m"}}
    assert server.post(**CHAT | {"messages": [{"role": "user", "content": [part]}]}).status_code == 200


def send(server, path, body):
    """As `json=`, which would refuse NaN and lone surrogates itself."""
    return server.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_completions_refuse_by_name_too(server, fields, param):
    assert refused(send(server, "/v1/completions", TEXT | fields))["param"] == param


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [("", "prompt is empty"), ("x" * 5000, "prompt has 5000 tokens"), ("\ud800", "lone surrogate")],
)
def test_a_prompt_that_cannot_run_is_refused(server, prompt, reason):
    assert reason in refused(send(server, "/v1/completions", TEXT | {"prompt": prompt}))["message"]


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("/v1/completions", {"prompt": [1] * 4096}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 4090}]}),
    ],
)
def test_a_prompt_that_is_just_too_long_has_openais_code(server, where, fields):
    error = refused(server.post(where, **fields))
    assert (error["param"], error["code"]) == (next(iter(fields)), "context_length_exceeded")


def nested(depth):
    return {"type": "string"} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


@pytest.mark.parametrize(
    "schema",
    [nested(60), nested(90), nested(300), {"type": "string", "minLength": 10**7},
     {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(2000)}}],
    ids=range(5),
)  # fmt: skip
def test_a_schema_that_is_too_much_is_the_clients_fault(server, schema):
    """It may be refused, or fail while the text is written; either way the client is told, and nobody else harmed."""
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    response = send(server, "/v1/chat/completions", CHAT | {"response_format": form, "temperature": 0})
    assert response.status_code in (200, 400), response.text
    assert server.post(**CHAT).status_code == 200


@pytest.mark.parametrize(
    ("where", "fields", "name"),
    [
        ("/v1/completions", {"prompt": "word " * 800_000}, "prompt"),
        ("/v1/completions", {"prompt": ["Hi", "word " * 800_000]}, "prompt"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "word " * 800_000}]}, "prompt"),
        ("/v1/chat/completions", CHAT | {"prediction": {"type": "content", "content": "x" * 4_000_000}}, "prediction"),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_read(server, monkeypatch, where, fields, name):
    """A text of 4 MB would keep the tokenizer, and all who wait for it, busy for seconds."""
    tokenizer, read = server.llm.tokenizer, []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **options: read.append(text) or encode(text, **options))
    error = refused(server.post(where, **fields))
    assert f"the {name} has 30" in error["message"], "4 MB of at most 13 bytes a token"
    assert "4096" in error["message"]
    field = "messages" if name == "prompt" and "chat" in where else name
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert max(map(len, read), default=0) < 1000


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"messages": [' + b"[" * 100_000,
     b'{"n": ' + b"1" * 5000 + b"}", b'{"a": "' + b"\xc3" + b'"}'],
    ids=range(10),
)  # fmt: skip
def test_bodies_that_are_no_objects_are_refused(server, content):
    response = server.http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    refused(response)


def test_a_body_that_is_not_sent_as_json_is_refused(server):
    """So a page of another site, whose requests are limited to a few types unless it asks first, reaches nothing."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = server.http.post("/v1/chat/completions", content='{"messages": []}', headers={"content-type": kind})
        assert "application/json" in refused(response)["message"]


def test_another_model_is_not_found(server):
    response = server.post(**CHAT, model="gpt-4")
    assert response.status_code == 404
    assert response.json()["error"] | {"message": ""} == {
        "message": "", "type": "invalid_request_error", "param": "model", "code": "model_not_found"
    }  # fmt: skip


@pytest.mark.parametrize(("method", "where", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405),
                                                        ("POST", "/v1/responses", 404)])  # fmt: skip
def test_what_is_not_there_says_so_in_the_same_form(server, method, where, status):
    response = server.http.request(method, where, json={} if method == "POST" else None)
    assert response.status_code == status
    assert where in response.json()["error"]["message"]
