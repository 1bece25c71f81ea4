from __future__ import annotations

import pytest

from penstock_log import UserRemoved, UserSet, subjects
from penstock_log.users import ROLES, UserRecord, Users, has_rights_of


def test_people_come_change_and_go() -> None:
    users = Users()
    assert users.apply(UserSet(user="alice", role="user", teams=("vision",), at_s=1.0)) == "alice"
    assert users.apply(UserSet(user="alice", role="operator", valid_from_s=2.0, at_s=2.0)) == "alice"
    assert users.by_name == {"alice": UserRecord(name="alice", role="operator", valid_from_s=2.0)}
    assert users.apply(UserRemoved(user="alice", at_s=3.0)) == "alice"
    assert (users.by_name, users.removed) == ({}, {"alice": 3.0})
    users.apply(UserSet(user="alice", at_s=4.0))
    assert (users.by_name["alice"].role, users.removed) == ("user", {})


def test_each_role_has_the_rights_of_those_before_it() -> None:
    for number, role in enumerate(ROLES):
        assert [has_rights_of(role, least) for least in ROLES] == [i <= number for i in range(len(ROLES))]


@pytest.mark.parametrize("name", ["alice", "jane.doe@lab.org", "a b", "*", ">", "..", "bob.cmd.>", "ä", "%2E", "a\tb"])
def test_no_name_reaches_beyond_its_own_part_of_a_subject(name: str) -> None:
    subject = subjects.by_person(name, "penstock.cmd.gateway.submit")
    parts = subject.split(".")
    assert len(parts) == 6
    assert not {"*", ">"} & set(parts)
    assert " " not in subject
    assert "\t" not in subject
    assert subjects.asked_by(subject) == (name, "penstock.cmd.gateway.submit")
