"""The whole of a distillation on a tiny target, its interruptions, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider.cli import app
from outrider.distill import begin, run
from outrider.distill.run import Distillation
from outrider.distill.stages import Settings
from outrider.drafts import FOLLOWERS
from outrider.errors import ModelFileError, RequestError
from outrider.heads import load
from outrider.llm import LLM
from outrider.weights import followers
from tests.heads.tiny_head import tiny_head


@pytest.fixture
def settings(model, corpus_path, tmp_path):
    return Settings(
        model,
        tmp_path / "out",
        corpus_path,
        budget=4.0,
        kind="eagle",
        seed=0,
        start=None,
        resume=False,
        aside=(),
        prompts=(),
    )


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """However busy the machine: each interview, dialogue and step of training takes a quarter of a second."""
    ticks = count(0, 0.25)
    monkeypatch.setattr("outrider.distill.clock.monotonic", lambda: next(ticks))


def stages(distillation):
    seen = {}
    with closing(distillation.run()) as running:
        for progress in running:
            assert 0 <= progress.done <= progress.total
            seen[progress.stage] = progress
    return seen


def test_from_nothing_to_a_head_with_its_report(settings, target, monkeypatch):
    monkeypatch.setattr(run, "INTERVIEW_SHARE", 0.6)
    distillation = Distillation(replace(settings, corpus=None, budget=21.0))
    seen = stages(distillation)
    assert list(seen) == ["interview", "features", "training"]
    head = load(settings.folder)
    assert head.config.vocabulary == target.shape.vocabulary
    report = json.loads((settings.folder / "report.json").read_text())
    assert report["target_sha256"] == target.sha256
    assert report["steps"] > 0
    assert report["answer_tokens"] > 0
    assert len(report["acceptance"]["per_position"]) == 5
    assert set(report["speed"]["measured"]) == {"eagle:5", "suffix", "auto"}
    assert "tokens per step" in (settings.folder / "README.md").read_text()


def test_a_head_is_trained_on_from_what_another_has_learned(settings, tmp_path):
    stages(Distillation(settings))
    again = Distillation(replace(settings, folder=tmp_path / "again", start=settings.folder, budget=1e-6))
    seen = stages(again)  # no time to train: what is measured is what it began with
    assert seen["training"].done == seen["training"].total
    before, after = (load(folder) for folder in (settings.folder, tmp_path / "again"))
    assert after.target_ids.tolist() == before.target_ids.tolist()
    for name, weight in before.matrices.items():
        assert np.array_equal(weight.floats(), after.matrices[name].floats()), name


def test_a_start_that_does_not_fit_is_refused_by_name(settings, tmp_path):
    head = tiny_head(tmp_path / "head", ffn=160)
    with pytest.raises(ModelFileError, match=r"'midlayer.mlp.gate_proj.weight' is \[160, 64\], for .* it is \["):
        stages(Distillation(replace(settings, start=head)))
    other = tiny_head(tmp_path / "other", vocabulary=300)
    with pytest.raises(ModelFileError, match="its vocab_size is 300"):
        stages(Distillation(replace(settings, start=other, resume=True)))
    with pytest.raises(RequestError, match="only with 'eagle'"):
        begin(replace(settings, kind="model", start=head))


def test_a_table_of_followers_is_counted_and_used(settings):
    stages(Distillation(settings))
    table = followers.load(settings.folder / FOLLOWERS, 2**20)
    assert all(len(keys) > 0 for keys, _, _ in table.parts.values())
    llm = LLM(settings.target, draft=settings.folder, threads=1)
    assert "eagle" in llm.drafters


@pytest.mark.parametrize("brought", [False, True])
def test_a_table_of_followers_alone(settings, brought, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # whoever imports it fails
    tabulation = begin(replace(settings, kind="followers", corpus=settings.corpus if brought else None, budget=10.0))
    seen = stages(tabulation)
    assert list(seen) == ["timing"] if brought else ["interview", "timing"]
    report = json.loads((settings.folder / "report.json").read_text())
    assert report["kind"] == "followers"
    assert report["answer_tokens"] > 0
    assert set(report["speed"]["measured"]) == {"suffix, as before", "suffix", "auto"}
    card = (settings.folder / "README.md").read_text()
    assert "table of followers" in card
    assert "suffix, as before" in card
    assert sorted(path.name for path in settings.folder.iterdir()) == [
        "README.md", "followers.safetensors", "report.json", "work",
    ]  # fmt: skip


def test_a_small_model_from_a_given_corpus(settings):
    seen = stages(Distillation(replace(settings, kind="model")))
    assert list(seen) == ["features", "training"]
    assert (settings.folder / "draft.gguf").stat().st_size > 0
    assert json.loads((settings.folder / "report.json").read_text())["kind"] == "model"


def test_closing_keeps_what_was_done_and_resuming_goes_on(settings):
    first = Distillation(replace(settings, budget=60.0))
    with closing(first.run()) as running:
        done = [progress for progress, _ in zip((p for p in running if p.stage == "training"), range(3), strict=False)]
    assert len(done) == 3
    shutil.rmtree(settings.folder / "work" / "features")  # they are computed again
    spent = json.loads((settings.folder / "work" / "clock.json").read_text())["training"]
    second = Distillation(replace(settings, budget=spent + 6.0, resume=True))
    stages(second)
    assert second.report.steps > 3
    assert second.report.seconds["training"] >= spent


def test_a_folder_in_use_is_not_begun_anew(settings):
    Distillation(settings)
    with pytest.raises(RequestError, match="go on with --resume"):
        Distillation(settings)


def test_two_processes_do_not_work_in_one_folder(settings):
    with closing(Distillation(settings).run()) as running:
        next(running)
        with pytest.raises(RequestError, match="another process is at work"):
            stages(Distillation(replace(settings, resume=True)))
    assert stages(Distillation(replace(settings, resume=True)))


def test_there_must_be_something_to_resume(settings):
    with pytest.raises(RequestError, match="holds no distillation"):
        Distillation(replace(settings, resume=True))


@pytest.mark.parametrize(
    ("change", "named"), [({"kind": "model"}, "kind=eagle"), ({"seed": 8}, "seed=0"), ({"corpus": "other"}, "corpus=")]
)
def test_going_on_with_something_else_is_refused(settings, tmp_path, change, named):
    Distillation(settings)
    if "corpus" in change:
        (tmp_path / "other.jsonl").write_text("{}\n")
        change = {"corpus": tmp_path / "other.jsonl"}
    with pytest.raises(RequestError, match=named):
        Distillation(replace(settings, resume=True, **change))


def test_going_on_needs_no_corpus_again(settings):
    Distillation(settings)
    assert "interview" not in stages(Distillation(replace(settings, resume=True, corpus=None, budget=2.0)))


def test_an_unknown_kind_is_refused(settings):
    with pytest.raises(RequestError, match=r"medusa.*eagle, model, followers"):
        begin(replace(settings, kind="medusa"))


def test_one_dialogue_is_too_few(settings, corpus_path, tmp_path):
    one = tmp_path / "one.jsonl"
    one.write_text(corpus_path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RequestError, match="too few"):
        stages(Distillation(replace(settings, corpus=one)))


def test_a_full_disk_is_noticed_before_anything_is_computed(settings, monkeypatch):
    usage = shutil.disk_usage(settings.folder.parent)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(RequestError, match=r"need .* MiB more"):
        stages(Distillation(settings))


def outrider(*args):
    return CliRunner().invoke(app, ["distill", *map(str, args)])


def test_the_command_prints_the_card(settings, model, corpus_path):
    result = outrider(model, "-o", settings.folder, "--corpus", corpus_path, "--budget", "3s")
    assert result.exit_code == 0, result.output
    assert "tokens per step" in result.stdout
    assert "on disk" in result.stderr  # said before the features are made
    assert (settings.folder / "model.safetensors").exists()


def test_ctrl_c_is_no_loss(settings, model, corpus_path, monkeypatch):
    original = Distillation.run

    def interrupted(distillation):
        for number, progress in enumerate(original(distillation)):
            yield progress
            if number == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Distillation, "run", interrupted)
    result = outrider(model, "-o", settings.folder, "--corpus", corpus_path)
    assert result.exit_code == 130
    assert "--resume" in result.stdout
    assert (settings.folder / "work" / "clock.json").exists()


def test_without_pytorch_the_command_says_what_to_install(settings, model):
    code = "import sys; sys.modules['torch'] = None; from outrider.cli import main; main()"
    command = [sys.executable, "-c", code, "distill", str(model), "-o", str(settings.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs torch: pip install 'outrider[distill]'" in done.stderr


@pytest.mark.parametrize("budget", ["10", "0s", "-1m", "m", "1y"])
def test_a_budget_is_a_time(model, tmp_path, budget):
    result = outrider(model, "-o", tmp_path / "out", f"--budget={budget}")
    assert result.exit_code == 1
    assert "such as 90m" in result.stderr
    assert not (tmp_path / "out").exists()
