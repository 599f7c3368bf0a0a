"""Where a text ends: stop ids, stop strings, limits; and that ids, text, log-probabilities and counts end together."""

from __future__ import annotations

import pytest

from outrider.errors import RequestError
from outrider.request import Request
from outrider.sampling import SamplingParams
from tests.scripted import (
    LETTERS,
    Letters,
    ScriptedDrafter,
    ScriptedModel,
    accepted,
    constant,
    generate,
    greedy_text,
    make_engine,
    noisy,
    perfect,
    run,
    script,
    shifted,
)

EOS = 15
LAW = noisy(never=[EOS])


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("declared", ["eos", "stop_token_ids"])
def test_a_stop_id_ends_the_text_wherever_it_is_in_the_run(place, declared):
    """B45: one accepted run of eight and a bonus token, with the stop id at each of its places."""
    text = [*range(place), EOS, *range(place, 14)]
    law = script(text, prompt_length=1)
    engine = make_engine(ScriptedModel(law), perfect(law), eos_ids=[EOS] if declared == "eos" else [])
    stop_token_ids = () if declared == "eos" else (EOS,)
    request = generate(engine, [3], SamplingParams(max_tokens=14, stop_token_ids=stop_token_ids, logprobs=0))
    assert request.output == text[: place + 1]
    assert request.text == LETTERS.text(range(place))  # the stop id adds no text, but counts and has its entry
    assert request.finish_reason == "stop"
    assert len(request.logprobs) == place + 1
    assert request.stats.accepted == min(place + 1, 8)


@pytest.mark.parametrize("eos_ids", [[7, 9], [9, 7], [9]])
def test_any_of_several_stop_ids_ends_the_text(eos_ids):
    """B58: a list of stop ids, the one that comes is not the first."""
    law = script([1, 2, 3, 9, 4, 5])
    request = generate(make_engine(ScriptedModel(law), perfect(law), eos_ids=eos_ids), [3])
    assert (request.output, request.finish_reason) == ([1, 2, 3, 9], "stop")


def test_an_end_of_text_that_the_model_has_no_logit_for_is_no_end():
    """A tokenizer may know more tokens than the model: min_tokens keeps away those that there are."""
    law = script([3, 4])
    params = SamplingParams(max_tokens=4, min_tokens=2)
    found = generate(make_engine(ScriptedModel(law), eos_ids=[4, 16, 99]), [1], params)
    assert (found.output, found.finish_reason) == ([3, 0, 3, 4], "stop")


def test_without_stop_ids_or_ignoring_them_the_text_goes_on():
    """B58, B97: an empty list means never; ignore_eos writes the token's own text."""
    law = script([1, 9, 2])
    plain = generate(make_engine(ScriptedModel(law), perfect(law)), [3])
    ignoring = generate(
        make_engine(ScriptedModel(law), perfect(law), eos_ids=[9]), [3], SamplingParams(max_tokens=12, ignore_eos=True)
    )
    assert plain.output == ignoring.output == [1, 9, 2] * 4
    assert ignoring.text == LETTERS.text(ignoring.output)
    assert ignoring.finish_reason == "length"


def test_ignore_eos_does_not_ignore_the_requests_own_stop_ids():
    law = script([1, 9, 2])
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(2,))
    assert generate(make_engine(ScriptedModel(law), perfect(law), eos_ids=[9]), [3], params).output == [1, 9, 2]


DRAFTS = {
    "plain": constant(),
    "perfect": perfect(LAW),
    "two of five": accepted(LAW, lambda request: 2, 5),
    "late": shifted(LAW),
    "eos": constant(EOS, EOS, EOS),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("start", range(0, 12))
def test_a_stop_string_cuts_at_the_same_place_in_any_step(draft, start, length):
    """B47, B48, B49, B52: the stop is at the start, in the middle, at the end of a run, or over two of them."""
    whole = greedy_text(LAW, [1], 20)
    stop = LETTERS.text(whole[start : start + length])
    first = LETTERS.text(whole).index(stop)
    params = SamplingParams(max_tokens=20, stop=("never", stop), logprobs=2)
    request = generate(make_engine(ScriptedModel(LAW), draft, eos_ids=[EOS]), [1], params)
    assert request.text == LETTERS.text(whole)[:first]
    assert request.output == whole[: first + length]  # up to the token that completes the stop
    assert len(request.logprobs) == request.completion_tokens == first + length
    assert request.finish_reason == "stop"


def test_a_stop_string_inside_a_token_ends_with_that_token():
    """B48: the text is cut inside the token, the ids after it."""
    law = script([0, 1, 2, 0])
    letters = Letters([b"the", b" end of", b" it", *[b"?"] * 13])
    engine = make_engine(ScriptedModel(law), perfect(law), letters=letters)
    request = generate(engine, [5], SamplingParams(max_tokens=9, stop=("nd o",)))
    assert (request.text, request.output) == ("the e", [0, 1])


def test_accepted_text_goes_through_the_same_queue():
    """B51: the stop "of them", the text "three of them made", its tail accepted in one run."""
    pieces = [b"three", b" of", b" th", b"em", b" made"]
    law = script([0, 1, 2, 3, 4])
    engine = make_engine(ScriptedModel(law), perfect(law, 3), letters=Letters([*pieces, *[b"?"] * 11]))
    request = Request([5], SamplingParams(max_tokens=5, stop=("of them",)))
    emitted = run(engine, request)
    assert [item.text for item in emitted] == ["three "]
    assert request.output == [0, 1, 2, 3]
    request = Request([5], SamplingParams(max_tokens=3, stop=("of them",)))
    emitted = run(engine, request)
    assert request.text == "three of th"  # what was held back comes out when the limit ends the text


EMOJI = "😀".encode()


@pytest.mark.parametrize("split", [1, 2, 3])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 8])
def test_a_character_over_several_tokens_comes_out_whole(split, k, max_tokens):
    """B53, B54: over the edge of a step, and cut by the limit in mid-character, whose tail comes out once."""
    letters = Letters([b"x", EMOJI[:split], EMOJI[split:], *[b"?"] * 13])
    law = script([0, 1, 2])
    engine = make_engine(ScriptedModel(law), perfect(law, k), letters=letters)
    request = Request([7], SamplingParams(max_tokens=max_tokens))
    emitted = run(engine, request)
    assert request.text == letters.text(request.output)
    for item in emitted[:-1]:
        assert "\ufffd" not in item.text
    assert ("\ufffd" in request.text) == (max_tokens % 3 == 2)


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_a_limit_is_met_exactly(k, max_tokens):
    """B03, B56, B100: max_tokens from 1 to k + 2, with every k, in a batch of one."""
    engine = make_engine(ScriptedModel(LAW), perfect(LAW, k), max_batch=1)
    request = generate(engine, [1, 2, 1, 2], SamplingParams(max_tokens=max_tokens))
    assert request.output == greedy_text(LAW, [1, 2, 1, 2], max_tokens)
    assert request.finish_reason == "length"


@pytest.mark.parametrize("prompt_length", [1, 40, 56, 62, 63])
def test_the_context_is_filled_exactly(prompt_length):
    """B93: context 64, k = 16, no other limit; the drafts shrink to the room that is left."""
    prompt = [2] * prompt_length
    drafter = ScriptedDrafter(perfect(LAW, 16))
    request = generate(
        make_engine(ScriptedModel(LAW, context=64), drafter, max_draft=16, blocks=2), prompt, SamplingParams()
    )
    assert request.output == greedy_text(LAW, prompt, 64 - prompt_length)
    assert request.finish_reason == "length"


@pytest.mark.parametrize("prompt_length", [64, 65])
def test_a_prompt_that_fills_the_context_is_refused(prompt_length):
    """B93: the message names both sizes."""
    engine = make_engine(ScriptedModel(LAW, context=64))
    with pytest.raises(RequestError, match=f"{prompt_length} tokens; the context of 64"):
        engine.submit(Request([1] * prompt_length))
    assert engine.idle


def test_a_stop_id_at_the_limit_is_a_stop():
    law = script([1, 2, EOS])
    engine = make_engine(ScriptedModel(law), perfect(law), eos_ids=[EOS])
    assert generate(engine, [3], SamplingParams(max_tokens=3)).finish_reason == "stop"
