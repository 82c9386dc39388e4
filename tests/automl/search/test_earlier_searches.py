"""Earlier searches as a prior: the searches that `--prior` accepts, and their display."""

from pathlib import Path

import optuna
import pytest
from confirm_cases import RECORDS, fake_search
from optuna.trial import create_trial

from automl.base.errors import InputError
from automl.cli.status import read_status
from automl.search.earlier import read_effects
from search.drawn import Drawn
from search.placement_effects import Effect, Term
from search.prior import write_prior
from search.space import Space, draw_randomly
from search.spaces import SPACES
from search.study import create_study, open_study, resume_study

DIGITS = SPACES["digits"]


def add_trials(study: optuna.Study, space: Space = DIGITS, count: int = 12) -> None:
    """Add completed trials with random placements, in which `ssa` is better."""
    for trial, _ in draw_randomly(space, count, first=space.baseline):
        score = sum(value == "ssa" for name, value in trial.params.items() if name.startswith("type"))
        study.add_trial(
            create_trial(params=trial.params, distributions=trial.distributions, value=float(score))
        )


def test_effects_are_read_at_the_sites_of_the_space(tmp_path: Path) -> None:
    for name in ("first", "second"):
        add_trials(resume_study(fake_search(tmp_path, name=name), name=name))
    prior = read_effects(["first", "second"], str(tmp_path), Drawn(DIGITS))
    assert list(prior) == ["first", "second"]
    assert prior["first"] == prior["second"]
    assert max(prior["first"], key=lambda e: prior["first"][e] if e.term == Term.TYPE else -1) == Effect(
        Term.TYPE, "ssa"
    )
    sites = {effect.key[1] for effect in prior["first"] if effect.term == Term.CELL}
    assert sites == set(range(len(sites)))


def test_searches_that_are_no_prior_are_rejected(tmp_path: Path) -> None:
    fake_search(tmp_path, name="plain", records=RECORDS[:1])
    other = fake_search(tmp_path, name="others")
    add_trials(resume_study(other, name="others"), DIGITS.with_attention(["linear", "sagan"]))
    two = fake_search(tmp_path, name="two")
    (two / "study.journal").unlink()
    create_study(two, name="two", directions=open_study(other, name="others").directions * 2)
    for name, message in (
        ("gone", "no search called 'gone'"),
        ("plain", "'plain' has none"),
        ("two", "'two' has several"),
    ):
        with pytest.raises(InputError, match=message):
            read_effects([name], str(tmp_path), Drawn(DIGITS))
    space = DIGITS.with_attention(["ssa", "multihead"])
    with pytest.raises(InputError, match=r"a type of this space \(multihead, ssa\); 'others' has linear, sa"):
        read_effects(["others"], str(tmp_path), Drawn(space))


def test_status_shows_how_much_an_earlier_search_counts(tmp_path: Path) -> None:
    add_trials(resume_study(fake_search(tmp_path, name="old"), name="old"), count=30)
    study = resume_study(fake_search(tmp_path, name="new", prior="old"), name="new")
    write_prior(study, read_effects(["old"], str(tmp_path), Drawn(DIGITS)))
    assert read_status("new", str(tmp_path)).prior == {}, "no trial with a placement has completed"
    add_trials(study, count=30)
    status = read_status("new", str(tmp_path))
    mean, low, high = status.prior["old"]
    assert 0.5 < mean < 1.5
    assert f"prior     old counts {mean:.2f} ({low:.2f} to {high:.2f})" in status.lines()
