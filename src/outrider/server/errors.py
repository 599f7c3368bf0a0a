"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}} with an HTTP status."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from outrider.errors import ConstraintError, ContextError, ModelError, OutriderError, RequestError

log = logging.getLogger(__name__)


class APIError(Exception):
    """A request that is not answered as it wishes.

    param    the field at fault, such as "messages[0].content".
    code     a word for programs, such as "model_not_found".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": type, "param": param, "code": code}}

    def response(self) -> Response:
        """The error as an answer of its own."""
        return Response(encode(self.body), self.status, self.headers, "application/json")


def encode(body: object) -> bytes:
    """JSON in UTF-8. Lone surrogates, which a client may send escaped and which have no UTF-8, stay escaped."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def from_library(error: Exception, prompt: str = "prompt") -> APIError:
    """What the library raised for one request: its fault (400), or not (500). prompt: the field that has the prompt."""
    if isinstance(error, RequestError):
        param = {"json_schema": "response_format", "prompt": prompt}.get(error.field or "", error.field)
        code = "context_length_exceeded" if isinstance(error, ContextError) else None
        return APIError(400, str(error), param=param, code=code)
    if isinstance(error, ConstraintError):  # a schema that is too much for the grammar, or at odds with a bias
        return APIError(400, str(error), param="response_format")
    if isinstance(error, ModelError):
        return APIError(500, str(error), type="server_error")
    log.error("a request failed: %s: %s", type(error).__name__, error, exc_info=error)
    return APIError(500, f"the request failed: {type(error).__name__}: {error}", type="server_error")


def install(app: FastAPI) -> None:
    """Give all of an app's errors this form."""

    async def api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return error.response()

    async def other(_: Request, error: Exception) -> Response:
        return from_library(error).response()

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid(error).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            message = f"there is no {request.url.path}"
        elif error.status_code == 405:
            message = f"{request.url.path} does not know the method {request.method}"
        else:
            message = str(error.detail)
        return APIError(error.status_code, message, headers=error.headers).response()

    app.add_exception_handler(APIError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(OutriderError, other)
    app.add_exception_handler(Exception, other)


def _invalid(error: RequestValidationError) -> APIError:
    """The first fault of a body, with the name of the field and what it has.

    Where a field may be of several types there is a fault for each; that of the type that fits best does not concern
    the type itself, or goes deepest.
    """
    faults = error.errors()
    same = [each for each in faults if each["loc"][:2] == faults[0]["loc"][:2]]
    fault = max(same, key=lambda each: (not each["type"].endswith("_type"), len(each["loc"])))
    if fault["type"] == "json_invalid":
        return APIError(400, f"the body is no valid JSON: {fault['ctx']['error']} at character {fault['loc'][-1]}")
    param = _path(fault["loc"][1:], error.body)
    if not param:
        return APIError(400, "the body must be a JSON object, sent with content-type: application/json")
    if fault["type"] == "extra_forbidden":
        return APIError(400, f"{param} is not known", param=param, code="unknown_parameter")
    if fault["type"] == "missing":
        return APIError(400, f"{param} is missing", param=param, code="missing_required_parameter")
    reason = fault["msg"][:1].lower() + fault["msg"][1:]
    code = "unsupported_parameter" if fault["type"] == "unsupported" else "invalid_value"
    return APIError(400, f"{param}={_shown(fault['input'])}: {reason}", param=param, code=code)


def _path(location: Sequence[int | str], body: Any) -> str:
    """("messages", 0, "content") as messages[0].content, as far as the body goes; the rest are pydantic's own words."""
    path = ""
    for place, part in enumerate(location):
        if isinstance(part, int) and isinstance(body, list) and part < len(body):
            path, body = f"{path}[{part}]", body[part]
        elif isinstance(part, str) and isinstance(body, dict) and (part in body or place == len(location) - 1):
            path, body = f"{path}.{part}" if path else part, body.get(part)
    return path


def _shown(value: Any) -> str:
    """A value as it was sent, cut to a line; no more of it is written than that."""
    text = "".join(islice(json.JSONEncoder(default=repr).iterencode(value), 101))
    return text if len(text) <= 100 else f"{text[:100]}…"
