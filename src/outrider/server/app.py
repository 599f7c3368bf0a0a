"""The application: its routes, and the way from a body to an answer.

app = create_app(LLM("smollm2"), Settings())
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from outrider.errors import RequestError
from outrider.llm import LLM, Prompt
from outrider.request import Request as Text
from outrider.sampling import SamplingParams
from outrider.server import errors
from outrider.server.answer import Answer, ChatAnswer, CompletionAnswer
from outrider.server.errors import APIError
from outrider.server.guard import Guard
from outrider.server.schemas import ChatRequest, Common, CompletionRequest, text_of
from outrider.server.service import Service
from outrider.server.settings import MAX_TEXTS, Settings
from outrider.server.stream import EventStream, whole_answer
from outrider.weights import hub

_PAGE_HEADERS = {  # the page is all there is: nothing comes from elsewhere, and nothing goes there
    "content-security-policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'"
}

PLAYGROUND = Path(__file__).parent / "playground" / "index.html"


def create_app(llm: LLM, settings: Settings) -> FastAPI:
    """An ASGI application that serves one model; `app.state.service` is its Service."""
    service = Service(llm, settings)
    name = served_name(llm)
    started = int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(
        title="Outrider",
        description="An OpenAI-compatible server that speculates.",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    errors.install(app)
    app.add_middleware(Guard, settings=settings, refused=service.metrics.refuse)

    async def respond(
        body: Common, request: Request, count: int, prepare: Callable[[], list[Text]], kind: type[Answer]
    ) -> Response:
        """Queue the texts that `prepare` makes of a body, which takes a while and is done beside the event loop."""
        _check_common(body, name)
        generation = service.open(count)
        try:
            texts = await service.prepare(prepare)
            service.start(generation, texts)
            answer = kind(body, name, llm.tokenizer, texts)
        except BaseException:
            service.close(generation)
            raise
        if body.stream:
            return EventStream(service, generation, answer)
        return await whole_answer(service, generation, answer, request.receive)

    @app.post("/v1/chat/completions", responses=_ANSWERS)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """The next message of a conversation."""

        def prepare() -> list[Text]:
            messages = [message.message() for message in body.messages]
            try:
                return _texts(llm, [messages], body, _chat_params(body), _prediction(body), body.schema_of_text)
            except RequestError as error:
                raise errors.from_library(error, prompt="messages") from error

        return await respond(body, request, body.choices, prepare, ChatAnswer)

    @app.post("/v1/completions", responses=_ANSWERS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """The continuation of one or more prompts."""
        prompts = body.prompts
        count = len(prompts) * body.choices
        if count > MAX_TEXTS:
            raise APIError(
                400, f"{len(prompts)} prompts with n={body.choices} make {count} texts; at most {MAX_TEXTS}", param="n"
            )

        def prepare() -> list[Text]:
            params = body.params(16 if body.max_tokens is None else body.max_tokens, body.logprobs)
            return _texts(llm, prompts, body, params)

        return await respond(body, request, count, prepare, CompletionAnswer)

    @app.get("/v1/models")
    async def models() -> Response:
        """The model that is served."""
        return _json({"object": "list", "data": [_model(name, started)]})

    @app.get("/v1/models/{model:path}", responses=_MAY_FAIL)
    async def model(model: str) -> Response:
        """The model, by its name."""
        if model != name:
            raise _unknown_model(model, name)
        return _json(_model(name, started))

    @app.post("/v1/responses", include_in_schema=False)
    async def responses() -> Response:
        raise APIError(404, "/v1/responses is not supported; use /v1/chat/completions")

    @app.get("/health", responses=_MAY_FAIL)
    async def health() -> Response:
        """Whether requests are answered, and by what."""
        state, scheduler = service.state, llm.engine.scheduler
        body = {
            "status": state,
            "model": name,
            "speculation": str(llm.speculation),
            "drafters": [] if llm.speculation.length == 0 else list(llm.drafters),
            "context_length": llm.context_length,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
        }
        return _json(body, 200 if state == "ok" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return FileResponse(PLAYGROUND, headers=_PAGE_HEADERS)

    return app


def served_name(llm: LLM) -> str:
    """What clients call the model: its alias, or its file's name without the ending."""
    return llm.name if llm.name in hub.ALIASES else llm.path.stem


def _check_common(body: Common, name: str) -> None:
    if body.model is not None and body.model != name:
        raise _unknown_model(body.model, name)
    if body.stream_options is not None and not body.stream:
        raise APIError(400, "stream_options needs stream", param="stream_options")


def _chat_params(body: ChatRequest) -> SamplingParams:
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise APIError(
            400, "max_tokens and max_completion_tokens differ; give one of them", param="max_completion_tokens"
        )
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs", param="top_logprobs")
    return body.params(limits.pop() if limits else None, body.top_logprobs or 0 if body.logprobs else None)


def _prediction(body: ChatRequest) -> str:
    return text_of(body.prediction.content) if body.prediction else ""


def _texts(
    llm: LLM,
    prompts: Sequence[Prompt],
    body: Common,
    params: SamplingParams,
    prediction: str = "",
    json_schema: dict[str, Any] | None = None,
) -> list[Text]:
    """The library's requests: each prompt is read once, for all of its texts. Raises RequestError."""
    speculation = None if body.speculation is None else str(body.speculation)
    reuse = body.cache_prompt is not False
    return [
        llm.request(
            tokens,
            params,
            prediction=prediction,
            speculation=speculation,
            json_schema=json_schema,
            choice=choice,
            reuse=reuse,
        )
        for tokens in map(llm.encode, prompts)
        for choice in range(body.choices)
    ]


def _unknown_model(model: str, name: str) -> APIError:
    return APIError(
        404, f"there is no model {model!r}; this server has {name!r}", param="model", code="model_not_found"
    )


def _model(name: str, started: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": started, "owned_by": "outrider"}


def _json(body: object, status: int = 200) -> Response:
    return Response(errors.encode(body), status, media_type="application/json")


def _version() -> str:
    try:
        return metadata.version("outrider")
    except metadata.PackageNotFoundError:
        return "0"


_MAY_FAIL: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Refused; the body says why.", "content": {"application/json": {}}},
    "5XX": {"description": "Failed; the body says why.", "content": {"application/json": {}}},
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or a stream of events.",
          "content": {"application/json": {}, "text/event-stream": {}}},
    **_MAY_FAIL,
}  # fmt: skip
