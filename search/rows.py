"""The trials of a study as rows of Optuna's tables: what is written of them while they run.

Optuna's own storage loads a trial anew for each thing that it writes, and commits each by itself: 12 ms for a
new trial, 2 for a report, 10 for an end. That is most of what hundreds of trials at once cost their driver.
Here each of the three is one transaction of few statements. The tables and how values are kept in them are
Optuna's, and so is whoever reads them.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isnan
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

_Value = models.TrialValueModel
_Intermediate = models.TrialIntermediateValueModel


class Rows:
    """Writes to a study on disk, of which this process is the only writer.

    Raises SQLAlchemyError when it cannot be written.
    """

    def __init__(self, study: optuna.Study) -> None:
        storage: Any = study._storage
        self._engine = storage._backend.engine  # below Optuna's cache
        self._study = study._study_id
        with Session(self._engine) as session:
            mine = models.TrialModel.study_id == self._study
            pairs = session.execute(select(models.TrialModel.number, models.TrialModel.trial_id).where(mine))
            self._ids: dict[int, Any] = dict(pairs.tuples().all())

    def add(self, trial: FrozenTrial) -> int:
        """Put a running trial into the study. Returns its number."""
        number = len(self._ids)
        with Session(self._engine) as session, session.begin():
            row = models.TrialModel(study_id=self._study, number=number, state=TrialState.RUNNING)
            row.datetime_start = trial.datetime_start
            session.add(row)
            session.flush()
            parameters = [
                {
                    "trial_id": row.trial_id,
                    "param_name": name,
                    "param_value": kind.to_internal_repr(trial.params[name]),
                    "distribution_json": distribution_to_json(kind),
                }
                for name, kind in trial.distributions.items()
            ]
            if parameters:
                session.execute(insert(models.TrialParamModel), parameters)
            _set(session, models.TrialUserAttributeModel, row.trial_id, trial.user_attrs)
            self._ids[number] = row.trial_id
        return number

    def set(
        self, number: int, attributes: Mapping[str, Any], intermediate: Mapping[int, float] | None = None
    ) -> None:
        """Write user attributes of a trial, and intermediate values by their steps."""
        if not attributes and not intermediate:
            return
        values = []
        for step, value in (intermediate or {}).items():
            kept, kind = _Intermediate.intermediate_value_to_stored_repr(value)
            values.append(
                {
                    "trial_id": self._ids[number],
                    "step": step,
                    "intermediate_value": kept,
                    "intermediate_value_type": kind,
                }
            )
        with Session(self._engine) as session, session.begin():
            _set(session, models.TrialUserAttributeModel, self._ids[number], attributes)
            if values:
                session.execute(insert(_Intermediate).on_conflict_do_nothing(), values)

    def end(
        self,
        number: int,
        state: TrialState,
        values: Sequence[float] | None = None,
        *,
        attributes: Mapping[str, Any],
        constraints: Mapping[str, float],
    ) -> None:
        """Close a trial.

        As Optuna has it, one that is pruned has its last intermediate value, and one whose value is no number
        has failed.
        """
        identifier = self._ids[number]
        with Session(self._engine) as session, session.begin():
            if state is TrialState.PRUNED:
                values = _last(session, identifier)
            elif any(isnan(value) for value in values or ()):
                state, values = TrialState.FAIL, None
            _set(session, models.TrialUserAttributeModel, identifier, attributes)
            named = {f"{_CONSTRAINTS_KEY}:{key}": value for key, value in constraints.items()}
            _set(session, models.TrialSystemAttributeModel, identifier, named)
            for objective, value in enumerate(values or ()):
                kept, kind = _Value.value_to_stored_repr(value)
                session.add(_Value(trial_id=identifier, objective=objective, value=kept, value_type=kind))
            row = session.get_one(models.TrialModel, identifier)
            row.state, row.datetime_complete = state, datetime.now()


def _set(session: Session, table: Any, identifier: Any, attributes: Mapping[str, Any]) -> None:
    if not attributes:
        return
    new = insert(table)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[table.trial_id, table.key], set_={"value_json": new.excluded.value_json}
        ),
        [
            {"trial_id": identifier, "key": key, "value_json": json.dumps(value)}
            for key, value in attributes.items()
        ],
    )


def _last(session: Session, identifier: Any) -> list[float] | None:
    of_it = _Intermediate.trial_id == identifier
    newest = select(func.max(_Intermediate.step)).where(of_it).scalar_subquery()
    row: Any = session.scalars(select(_Intermediate).where(of_it, _Intermediate.step == newest)).one_or_none()
    if row is None:
        return None
    value = _Intermediate.stored_repr_to_intermediate_value(
        row.intermediate_value, row.intermediate_value_type
    )
    return None if isnan(value) else [value]
