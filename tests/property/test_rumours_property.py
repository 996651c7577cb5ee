"""Rumours are kept in order as they come and go; sorting all of them for every message
would say the same."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from gossip.core.membership.dissemination import RumorQueue, retransmit_limit
from gossip.core.messages import Rumor
from gossip.core.settings import MembershipSettings

SETTINGS = MembershipSettings(retransmit_mult=1)


class Sorted:
    """The same in the plainest words."""

    def __init__(self) -> None:
        self.kept: list[list[object]] = []  # [rumour, times said], in the order they came

    def add(self, rumor: Rumor) -> None:
        about = [entry for entry in self.kept if entry[0].peer == rumor.peer]  # type: ignore[attr-defined]
        further = rumor.status == "suspect" and all(
            entry[0].status == "suspect" and entry[0].incarnation == rumor.incarnation  # type: ignore[attr-defined]
            for entry in about
        )
        if not further:
            self.kept = [entry for entry in self.kept if entry not in about]
            about = []
        known = [entry for entry in about if entry[0].origin == rumor.origin]  # type: ignore[attr-defined]
        if not known and len(about) >= SETTINGS.suspicion_mult - 1:
            return
        self.kept = [entry for entry in self.kept if entry not in known]
        self.kept.append([rumor, 0])

    def pick(self, n: int, limit: int, skip: int | None) -> tuple[Rumor, ...]:
        ages = {id(entry): age for age, entry in enumerate(self.kept)}
        waiting = [entry for entry in self.kept if entry[0].peer != skip]  # type: ignore[attr-defined]
        chosen = sorted(waiting, key=lambda entry: (entry[1], -ages[id(entry)]))[:limit]
        for entry in chosen:
            entry[1] += 1  # type: ignore[operator]
            if entry[1] >= retransmit_limit(n, SETTINGS):  # type: ignore[operator]
                self.kept.remove(entry)
        return tuple(entry[0] for entry in chosen)  # type: ignore[misc]


rumors = st.builds(
    lambda peer, status, standing, origin: Rumor(
        peer, status, standing, "", "", origin if status == "suspect" else peer
    ),
    st.integers(0, 4),
    st.sampled_from(["alive", "suspect", "suspect", "dead", "left"]),
    st.integers(0, 2),
    st.integers(5, 9),
)
picks = st.tuples(st.integers(1, 9), st.integers(0, 6), st.none() | st.integers(0, 4))


@settings(max_examples=100)
@given(st.lists(rumors | picks, max_size=60))
def test_the_next_rumours_are_those_that_sorting_would_find(
    story: list[Rumor | tuple[int, int, int | None]],
) -> None:
    ours, plain = RumorQueue(SETTINGS), Sorted()
    for step in story:
        if isinstance(step, Rumor):
            ours.add(step)
            plain.add(step)
        else:
            n, limit, skip = step
            assert ours.pick(n, limit, to=skip) == plain.pick(n, limit, skip)
        assert len(ours) == len(plain.kept)
