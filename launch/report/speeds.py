"""Message about a peer of a pipeline that is not as fast as its profile predicts."""

from __future__ import annotations

from gossip.observe import events


def unlike_profile(event: events.UnlikeProfile) -> str:
    """Return the message about an event ``unlike_profile``: the measured and the predicted time,
    and what to do."""
    measured, predicted = event.measured_us or 0.0, event.predicted_us or 0.0
    apart, slower = measured / predicted if predicted else 0.0, measured > predicted
    factor, word = (apart, "slower") if slower else (1 / apart if apart else 0.0, "faster")
    return (
        f"takes {_ms(measured)} for a micro-batch where its profile says {_ms(predicted)}: "
        f"{factor:.1f} times {word}. Does it do anything else, or is the profile of another "
        "machine? Profile it again (gossip plan profile ... --again) and plan again (gossip plan)"
    )


def _ms(us: float) -> str:
    return f"{us / 1e3:.3g} ms"
