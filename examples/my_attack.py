"""An attack of one's own, against some rules:

gossip bench robustness --rounds 30 --seeds 1 --attacks examples/my_attack.py:creep \\
    --rules "mean trimmed_mean suspicion"
"""


def creep(crowd, *, strength=1.5):
    """All liars send what lies ``strength`` standard deviations from the mean of the honest
    updates, against its direction: hard to tell from noise, and always the same way. (f, d)."""
    against = crowd.deviation() * crowd.mean().sign()
    return crowd.all_alike(crowd.mean() - strength * against)
