"""Each reducer of the plan is in all lists of reducers that are kept by hand, or is named here with the reason."""

import pkgutil
from importlib import import_module
from typing import get_args

import pytest

from app.core import plan
from app.core.policy.policy import Policy
from app.http.fields import Reducer
from app.wings.audit.declined import declined
from app.wings.audit.moments import ORDER
from tests.unit.audit.test_declined import log_of, planned

MODULES = [import_module(one.name) for one in pkgutil.walk_packages(plan.__path__, f"{plan.__name__}.")]
REDUCERS = sorted({module.REDUCER for module in MODULES if hasattr(module, "REDUCER")})
UNCONDITIONAL = {"expiry", "ttl_pruning", "visibility"}
"""Reducers that run before a reduction, so that no next reduction shows their evictions."""
NEVER_DECLINED = {"questions", "visibility"}
"""Reducers that free no room: one shows messages again, the other applies the decisions of an agent."""


def test_the_reducers_are_found() -> None:
    assert {"expiry", "fold", "visibility"} <= set(REDUCERS)
    assert set(REDUCERS) >= UNCONDITIONAL | NEVER_DECLINED | set(ORDER)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_each_reducer_is_in_the_lists(reducer: str) -> None:
    asked = {one.reducer for one in declined(planned(log_of(1), Policy()))}
    assert (reducer in ORDER) != (reducer in UNCONDITIONAL), "add it to ORDER of app/wings/audit/moments.py"
    assert (reducer in asked) != (reducer in NEVER_DECLINED), "let `declined` of app/wings/audit/declined.py ask it"
    assert f"`{reducer}`" in get_args(Reducer)[1].description, "describe it in Reducer of app/http/fields.py"
