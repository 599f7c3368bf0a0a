"""The bodies of requests: every field of OpenAI's API, those that other servers add, and what is done with each.

A field is honoured; or it cannot change the answer, and is accepted; or only its neutral values are. Anything else, and
any unknown field, is refused by name. null always means the default. A body has few errors, however wrong it is: long
lists are left at their first wrong item, objects at their first unknown field.
"""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from outrider.sampling import SamplingParams
from outrider.server.settings import (
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOP,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TEXTS,
    MAX_TOP_LOGPROBS,
)
from outrider.tokenizer import Message

_T = TypeVar("_T")


class Only:
    """A field that would change the answer and is not supported: null, and values that ask for nothing either."""

    def __init__(self, *neutral: object) -> None:
        self._allowed = (None, *neutral)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self._allowed)}

    def _check(self, value: object) -> object:
        if not any(type(value) is type(each) and value == each for each in self._allowed):
            allowed = ", ".join(map(dumps, self._allowed))
            raise PydanticCustomError("unsupported", "not supported; allowed: {allowed}", {"allowed": allowed})
        return value


Anything = Annotated[Any, WithJsonSchema({})]
"""A field that cannot change the answer."""


def _few(value: object) -> object:
    """pydantic counts the entries of an object when it has looked at all of them."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        counts = {"field_type": "Dictionary", "max_length": MAX_BIASES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", counts)
    return value


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
Biases = Annotated[
    dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES),
    BeforeValidator(_few),
]


class Body(BaseModel):
    """An object of which every field is known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: object) -> object:
        """The known fields and the first unknown one, which is refused; pydantic would name them all."""
        if not isinstance(body, dict):
            return body
        known = {field.alias or name for name, field in cls.__pydantic_fields__.items()}
        unknown = [name for name in body if name not in known]
        return {name: body[name] for name in known.union(unknown[:1]) & body.keys()} if unknown[1:] else body


class TextPart(Body):
    """A part of a message or a prediction."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Anything = None


Content = str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


def text_of(content: Content) -> str:
    """The text, its parts joined."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatMessage(Body):
    """One turn of a conversation. `developer` is OpenAI's newer word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Annotated[Any, Only("")] = None
    refusal: Annotated[Any, Only("")] = None
    tool_calls: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only()] = None
    tool_call_id: Annotated[Any, Only("")] = None
    audio: Annotated[Any, Only()] = None
    annotations: Annotated[Any, Only([])] = None
    reasoning_content: Annotated[Any, Only("")] = None

    def message(self) -> Message:
        """As the chat template knows it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": text_of(self.content)}


class StreamOptions(Body):
    """How a stream ends."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Only(False)] = None


class Prediction(Body):
    """Text that the caller expects as output, in part or whole (OpenAI's Predicted Outputs)."""

    type: Literal["content"]
    content: Content


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class JSONObject(Body):
    """The text is a JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema. Name and description are for people, and it is followed strictly in any case."""

    schema_: dict[str, Any] = Field(alias="schema")
    name: Anything = None
    description: Anything = None
    strict: bool | None = None


class JSONSchema(Body):
    """The text is JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


Format = Annotated[TextFormat | JSONObject | JSONSchema, Field(discriminator="type")]


class Common(Body):
    """What both kinds of request share."""

    model: str | None = Field(None, description="The served model; it may be left out.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="Default: 1.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    logit_bias: Biases | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None

    # What other servers have beside OpenAI's.
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="0 or -1: all tokens.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_IDS)] | None = None

    # Outrider's own.
    speculation: Annotated[str, Field(max_length=64)] | Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="auto, off, a drafter's name, a number of tokens, or both: suffix:4; the text is the same.",
    )
    cache_prompt: bool | None = Field(
        None, description="false: use no KV that other texts have left, and leave none; the text is the same."
    )
    return_sources: bool | None = Field(
        None, description="Say of each token where it came from: plain, accepted, recovered or bonus."
    )

    # What cannot change the answer.
    user: Anything = None
    metadata: Anything = None
    store: Anything = None
    service_tier: Anything = None
    safety_identifier: Anything = None
    prompt_cache_key: Anything = None
    prompt_cache_options: Anything = None
    prompt_cache_retention: Anything = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        """How many texts are wanted of each prompt."""
        return self.n or 1

    def params(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """What the library is asked for. Raises RequestError."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return SamplingParams(
            temperature=_or(self.temperature, 1.0),
            top_k=max(_or(self.top_k, 0), 0),
            top_p=_or(self.top_p, 1.0),
            min_p=_or(self.min_p, 0.0),
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=_or(self.min_tokens, 0),
            stop=tuple(stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
        )


class ChatRequest(Common):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prediction: Prediction | None = None
    response_format: Format | None = None

    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("none", "auto")] = None
    parallel_tool_calls: Anything = None  # without tools there are no calls
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    modalities: Annotated[Any, Only(["text"])] = None
    audio: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None
    moderation: Annotated[Any, Only()] = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    verbosity: Annotated[Any, Only("medium")] = None

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """The JSON schema that the text must satisfy; None: any text."""
        match self.response_format:
            case JSONObject():
                return {"type": "object"}
            case JSONSchema(json_schema=named):
                return named.schema_
        return None


class CompletionRequest(Common):
    """The body of /v1/completions."""

    prompt: (
        str | TokenIds | Texts | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    best_of: Annotated[Any, Only(1)] = None
    echo: Annotated[Any, Only(False)] = None
    suffix: Annotated[Any, Only("")] = None

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """Each of the prompts."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
