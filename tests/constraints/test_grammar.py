"""JSON schemas: what is refused, which tokens are allowed, and texts that satisfy them, drafted or not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from outrider import LLM, ConstraintError, RequestError, SamplingParams
from outrider.constraints.grammar import MAX_SCHEMA, Grammars
from outrider.llm import completion
from outrider.policy.costs import FREE
from tests.tiny import CONTROLS, default_model, tiny_llama

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog", "catfish"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """Random weights, byte tokens, and some that begin a character and end another."""
    path = tiny_llama(tmp_path_factory.mktemp("grammar") / "tiny.gguf", vocab_size=300)
    return LLM(path, threads=1, costs=FREE)


@pytest.fixture(scope="module")
def grammars(llm):
    return Grammars(llm.tokenizer, llm.model.vocabulary_size)


def is_person(text):
    value = json.loads(text)
    assert set(value) == set(PERSON["required"])
    assert isinstance(value["name"], str) and len(value["name"]) <= 8  # noqa: PT018
    assert value["kind"] in PERSON["properties"]["kind"]["enum"]
    assert type(value["age"]) is int and 0 <= value["age"] <= 99  # noqa: PT018
    assert len(value["tags"]) <= 3 and all(type(tag) is bool for tag in value["tags"])  # noqa: PT018
    return True


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"type": "string", "pattern": "(a"}, "regex parse error"),
        ({"$ref": "#/nope"}, "'/nope' does not exist"),
        ({"not": {}}, 'Unimplemented keys: \\["not"\\]'),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "Unsatisfiable schema"),
        ({"enum": ["x" * MAX_SCHEMA]}, f"characters; allowed: {MAX_SCHEMA}"),
        ({"const": {1, 2}}, "is no JSON: Object of type set"),
        ({"const": float("nan")}, "is no JSON"),
        ("object", "the JSON schema is 'object'; expected an object"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(grammars, schema, reason):
    with pytest.raises(RequestError, match=reason):
        grammars.json_schema(schema)


def test_a_missing_package_is_named(llm, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'outrider\[grammar\]'"):
        Grammars(llm.tokenizer, 300).json_schema({"type": "object"})


def test_exactly_the_tokens_are_allowed_with_which_the_text_can_go_on(grammars, llm):
    """Of a language with few texts, by trying all tokens at each place of each text."""
    words = ["the", "thé", "theth", "in", "😀", "世界"]
    language = [json.dumps(word, ensure_ascii=False).encode() for word in words]
    tokens = [llm.tokenizer.token_bytes(token) for token in range(llm.tokenizer.vocabulary_size)]
    for text in language:
        constraint, before = grammars.json_schema({"enum": words}), b""
        while before != text:
            assert not constraint.finished
            possible = [
                t for t, piece in enumerate(tokens) if piece and any(w.startswith(before + piece) for w in language)
            ]
            token = max((t for t in possible if text.startswith(before + tokens[t])), key=lambda t: len(tokens[t]))
            allowed = constraint.allowed(())
            assert allowed.shape == (llm.model.vocabulary_size,)
            if forced := constraint.forced():  # there is no choice about the text, and it is spelt in one way
                token = forced[0]
                assert np.flatnonzero(allowed).tolist() == [token]
                assert token in possible
            else:
                assert np.flatnonzero(allowed).tolist() == possible
            after = constraint.allowed((token,))
            constraint.accept(token)
            assert np.array_equal(constraint.allowed(()), after), "drafted or committed, it is the same"
            before += tokens[token]
        assert constraint.finished


def test_the_end_of_text_is_allowed_where_the_text_may_end_and_only_there(grammars, llm):
    end = llm.tokenizer.eos_ids[0]
    constraint = grammars.json_schema({"type": "integer"})
    assert not constraint.allowed(())[end]
    assert constraint.allowed([ord("4")])[end]
    assert not constraint.allowed([ord("-")])[end]
    assert constraint.legal([ord("4"), end, ord("2")]) == 2
    constraint.accept(ord("4"))
    assert not constraint.finished
    constraint.accept(end)
    assert constraint.finished


def test_asking_changes_nothing_and_each_request_has_its_own(grammars):
    one, two = (grammars.json_schema(PERSON) for _ in range(2))
    start = one.allowed(())
    one.legal([ord(c) for c in '{"name": 5'])
    one.allowed([ord("{")])
    one.forced()
    assert np.array_equal(one.allowed(()), start)
    one.accept(ord("{"))
    assert np.array_equal(two.allowed(()), start)
    with pytest.raises(ConstraintError, match="does not allow token 125"):
        one.accept(ord("}"))


def test_names_of_properties_are_forced(grammars, llm):
    constraint = grammars.json_schema(PERSON)
    for token in llm.tokenizer.encode('{"'):
        constraint.accept(token)
    assert llm.tokenizer.decode(constraint.forced()).startswith("name")
    assert constraint.legal(constraint.forced()) == len(constraint.forced())


def write(llm, params, **options):
    request = llm.request("the", params, json_schema=PERSON, **options)
    for _ in llm.run([request]):
        pass
    assert request.error is None
    return completion(request)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_model_writes_what_satisfies_the_schema(llm, seed):
    """With drafts and without the same text; a prediction that is right is accepted."""
    params = SamplingParams(temperature=1.5, seed=seed, max_tokens=200) if seed else SamplingParams(max_tokens=200)
    plain = write(llm, params, speculation="off")
    assert plain.finish_reason == "stop"
    assert is_person(plain.text)
    drafted = write(llm, params)
    predicted = write(llm, params, prediction=plain.text)
    assert drafted.token_ids == predicted.token_ids == plain.token_ids
    assert "grammar" in drafted.drafters
    assert max(drafted.steps, predicted.steps) < plain.steps
    assert not any(token >= len(llm.tokenizer.token_bytes(0)) + 266 for token in plain.token_ids), CONTROLS


def test_texts_of_several_requests_are_constrained_side_by_side(llm):
    """Any object, a person and a free text in one batch are what they are alone."""
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=60)

    def requests():
        return [llm.request("the", params, json_schema=schema) for schema in ({"type": "object"}, PERSON, None)]

    together = requests()
    for _ in llm.run(together):
        pass
    for request, alone in zip(together, requests(), strict=True):
        for _ in llm.run([alone]):
            pass
        assert request.output == alone.output
    assert together[0].text.startswith("{")
    assert not together[2].text.startswith("{")


@pytest.fixture(scope="module")
def real():
    if (model := default_model()) is None:
        pytest.skip("the default model is not in the cache: run `outrider generate hello` once")
    return LLM(model, context_length=512, costs=FREE)


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=120), SamplingParams(max_tokens=120, temperature=1, seed=3)]
)
def test_the_default_model_writes_what_satisfies_the_schema(real, params):
    messages = [{"role": "user", "content": "Describe a pet as JSON with name, kind, age and tags."}]
    texts = []
    for options in ({"speculation": "off"}, {}, {"prediction": '{"name": "Rex", "kind": "dog", "age": 5, "tags": []}'}):
        request = real.request(messages, params, json_schema=PERSON, **options)
        for _ in real.run([request]):
            pass
        assert request.finish_reason == "stop", request.error
        assert is_person(request.text)
        texts.append(request.output)
    assert texts[0] == texts[1] == texts[2]
