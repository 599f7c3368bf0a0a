"""A crew does tasks in processes of their own, each with its model, and answers in order."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from outrider.certify.crew import Crew
from outrider.errors import RequestError
from outrider.llm import LLM


def load(name):
    """Stands in for a model: a name, and the process that has it."""
    return f"{name} of {os.getpid()}"


def told(model, task, seconds=0.0):
    time.sleep(seconds)
    return model, task, os.getpid()


def refused(model):
    raise RequestError("no", "field")


def ended(model):
    os._exit(3)


def shouting(model):
    print("a word between")
    return 1


def test_each_process_has_its_own_model_and_answers_come_in_order():
    with Crew(2, partial(load, "m")) as crew:
        answers = list(crew.map([partial(told, task=i, seconds=0.2 if i == 0 else 0.05) for i in range(6)]))
        again = list(crew.map([partial(told, task=i) for i in range(2)]))
    assert [task for _, task, _ in answers] == list(range(6))
    assert all(model == f"m of {process}" for model, _, process in answers)
    processes = {process for _, _, process in answers}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert {process for _, _, process in again} <= processes


def test_a_crew_of_one_is_this_process_and_loads_once():
    loads = []
    with Crew(1, lambda: loads.append(1) or load("m")) as crew:
        answers = [*crew.map([partial(told, task=1)]), *crew.map([partial(told, task=2)])]
    assert [answer[1:] for answer in answers] == [(1, os.getpid()), (2, os.getpid())]
    assert loads == [1]


@pytest.mark.parametrize("size", [1, 2])
def test_what_a_task_raises_is_raised(size):
    with Crew(size, partial(load, "m")) as crew, pytest.raises(RequestError, match="no"):
        list(crew.map([partial(told, task=1), refused]))


def test_a_process_that_ends_is_an_error_and_no_wait_for_ever():
    with Crew(2, partial(load, "m")) as crew, pytest.raises(RuntimeError, match="ended, with code 3"):
        list(crew.map([ended]))


def test_what_a_task_prints_is_no_answer():
    with Crew(2, partial(load, "m")) as crew:
        assert list(crew.map([shouting, shouting])) == [1, 1]


def test_a_model_that_cannot_be_loaded_is_said_for_each_task(tmp_path):
    from outrider.errors import ModelError

    with Crew(2, partial(LLM, tmp_path / "none.gguf", speculation="off")) as crew, pytest.raises(ModelError):
        list(crew.map([shouting]))
