"""Requests that the parts of a peer make of it."""

from gossip.core.events import Stop
from gossip.core.requests import EndDrain, FollowRounds, LeaveRun, LostTrack, Requests


def test_requests_are_drained_in_the_order_of_their_kinds_the_last_of_each() -> None:
    requests, leave = Requests(), LeaveRun(Stop("asked to"))
    for request in (EndDrain(), leave, LostTrack(1, "a fork"), LostTrack(2, "far behind")):
        requests.add(request)
    assert requests.find(LostTrack) == LostTrack(2, "far behind")
    assert list(requests.drain()) == [LostTrack(2, "far behind"), leave, EndDrain()]
    assert list(requests.drain()) == []
    assert requests.find(LostTrack) is None


def test_a_request_that_is_added_while_others_are_handled_waits_only_for_earlier_kinds() -> None:
    requests = Requests()
    requests.add(FollowRounds())
    handled = []
    for request in requests.drain():
        handled.append(request)
        if request == FollowRounds():
            requests.add(LostTrack(1, "a fork"))
            requests.add(FollowRounds())  # its time has not come
            requests.add(EndDrain())
    assert handled == [FollowRounds(), EndDrain()]
    assert list(requests.drain()) == [LostTrack(1, "a fork"), FollowRounds()]
