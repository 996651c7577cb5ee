"""A custom attack, tested against some rules:

gossip bench robustness --rounds 30 --seeds 1 --attacks examples/my_attack.py:creep \\
    --rules "mean trimmed_mean suspicion"
"""


def creep(crowd, *, strength=1.5):
    """Return (f, d), the same for all attackers: the mean of the honest updates, shifted by
    ``strength`` standard deviations against its direction. It resembles noise."""
    against = crowd.deviation() * crowd.mean().sign()
    return crowd.all_alike(crowd.mean() - strength * against)
