from __future__ import annotations

from penstock_tuner.runner import LONGEST_S, WINDOW, TrialSubmissions


def test_what_was_never_submitted_is_due_at_once():
    assert TrialSubmissions(5.0).due({"a": "s", "b": "s"}, now_s=0.0) == ["a", "b"]


def test_pauses_between_repetitions_double_up_to_a_limit():
    submissions, now_s, pauses_s = TrialSubmissions(5.0), 0.0, []
    for _ in range(6):
        submissions.sent("a", now_s)
        pause_s = next(p for p in range(1, 100) if submissions.due({"a": "s"}, now_s + p))
        pauses_s.append(pause_s)
        now_s += pause_s
    assert pauses_s == [5, 10, 20, 40, LONGEST_S, LONGEST_S]


def test_accepted_trials_are_forgotten():
    submissions = TrialSubmissions(5.0)
    submissions.sent("a", 0.0)
    assert submissions.due({}, now_s=1.0) == []
    assert submissions.due({"a": "s"}, now_s=1.0) == ["a"]
    assert submissions.sent("a", 1.0) == 1


def test_only_so_many_submissions_wait_for_the_gateway_at_once():
    submissions, outstanding = TrialSubmissions(5.0), {f"t{i}": "s" for i in range(3 * WINDOW)}
    first = submissions.due(outstanding, now_s=0.0)
    assert first == list(outstanding)[:WINDOW]
    for job_id in first:
        submissions.sent(job_id, 0.0)
    assert submissions.due(outstanding, now_s=1.0) == []
    for job_id in first[:10]:
        del outstanding[job_id]
    assert submissions.due(outstanding, now_s=1.0) == list(outstanding)[WINDOW - 10 : WINDOW]
    assert submissions.due(outstanding, now_s=5.0)[: WINDOW - 10] == first[10:]
