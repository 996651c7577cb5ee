"""Times of a world: how long peers compute, and how long payloads are in transit."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.errors import ConfigError
from gossip_pipelines.planning import PeerProfile, read_profile

from .counters import draw_below, draw_normal, draw_uniform

UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of durations, in seconds."""

UNITS_BYTES = {
    "": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "kbit": 125.0,
    "Mbit": 125e3,
    "Gbit": 125e6,
}
"""Units of bandwidths, in bytes per second."""

JITTER = 0.05
"""Standard deviation, over the rounds, of the logarithm of a peer's compute times in
``lognormal``."""

_COMPUTE_HINT = (
    "constant:50ms, uniform:40ms:60ms, lognormal:0.3, lognormal:0.3:50ms, or measured:FILE"
)
_LINKS_HINT = "delay:20ms-50ms,bytes:12.5MB,uplink:5MB, each per second; or measured:PROFILE.toml"


ComputeTimes: TypeAlias = Callable[[NDArray[np.int64], int], NDArray[np.float64]]
"""Function ``(peers, round) -> seconds``: compute time of each peer's update in the round."""


def uniform(least_s: float, most_s: float, seed: int) -> ComputeTimes:
    """Return compute times that are uniformly distributed between two bounds, in seconds."""

    def seconds(peers: NDArray[np.int64], round_id: int) -> NDArray[np.float64]:
        drawn = draw_uniform("compute", seed, peers, round_id)
        return np.asarray(least_s + (most_s - least_s) * drawn)

    return seconds


def lognormal(median_s: float, sigma: float, seed: int) -> ComputeTimes:
    """Return compute times that are the median, times a constant random factor for each peer, times
    a small random factor for each update (``JITTER``).

    Args:
        median_s: Compute time of the median peer, in seconds.
        sigma: Standard deviation of the logarithm of the peers' factors. With 0.3 the slowest of
            20 peers takes about 1.75 times as long as the median.
    """

    def seconds(peers: NDArray[np.int64], round_id: int) -> NDArray[np.float64]:
        factors = sigma * draw_normal("compute/peer", seed, peers)
        factors = factors + JITTER * draw_normal("compute", seed, peers, round_id)
        return np.asarray(median_s * np.exp(factors))

    return seconds


def measured(times_s: Sequence[NDArray[np.float64]], seed: int) -> ComputeTimes:
    """Return compute times that are drawn from the times of measured peers. Peer p has the times of
    measured peer p modulo the number of measured peers.

    Args:
        times_s: For each measured peer, one or more compute times of an update, in seconds.
    """
    flat, lengths = np.concatenate(times_s), np.array([len(each) for each in times_s])
    begins = lengths.cumsum() - lengths

    def seconds(peers: NDArray[np.int64], round_id: int) -> NDArray[np.float64]:
        rows = peers % len(lengths)
        return np.asarray(
            flat[begins[rows] + draw_below(lengths[rows], "compute", seed, peers, round_id)]
        )

    return seconds


def read_duration(text: str) -> float:
    """Convert a duration such as ``0.5``, ``500ms``, ``10m`` or ``2h`` to seconds. Raises:
    ValueError."""
    return _read_amount(text, UNITS_S)


def _read_amount(text: str, units: dict[str, float]) -> float:
    unit = text.lstrip("0123456789.")
    if unit not in units:
        raise ValueError(text)
    return float(text.removesuffix(unit)) * units[unit]


def read_compute(spec: str, seed: int, batch: int = 1, local_steps: int = 1) -> ComputeTimes:
    """Read the compute times of updates. Durations are numbers of seconds, or texts such as 500ms.

    - ``constant:T``: T for all peers and rounds.
    - ``uniform:LEAST:MOST``: uniformly distributed, drawn for each peer and round.
    - ``lognormal:SIGMA[:MEDIAN]``: see ``lognormal``; the median is 50 ms by default.
    - ``measured:FILE.csv``: a file with the columns ``peer,seconds`` and one line for each measured
      update; see ``measured``.
    - ``measured:FILE.toml,FILE.toml``: profiles of ``gossip plan profile``. A local step takes the
      time of the forward and backward passes of all layers on a batch.

    Raises: ConfigError: ``spec`` is not one of these forms, or a file is not valid.
    """
    name, _, rest = spec.partition(":")
    if name == "measured" and rest:
        return measured(_read_measured(rest, batch, local_steps), seed)
    words = rest.split(":") if rest else []
    try:
        values = [float(words[0])] if name == "lognormal" else []
        values += [read_duration(word) for word in words[len(values) :]]
    except (ValueError, IndexError):
        values = [math.nan]
    if all(0 < value < math.inf for value in values):
        if name == "constant" and len(values) == 1:
            return uniform(values[0], values[0], seed)
        if name == "uniform" and len(values) == 2 and values[0] <= values[1]:
            return uniform(values[0], values[1], seed)
        if name == "lognormal" and len(values) in (1, 2):
            return lognormal([*values, 0.05][1], values[0], seed)
    raise ConfigError(f"there are no compute times {spec!r}", _COMPUTE_HINT)


def read_csv(path: Path, columns: str, name: str, hint: str) -> Iterator[tuple[int, list[str]]]:
    """Yield number and words of each line but the first of a CSV file for a field of a world.

    Raises: ConfigError: The file cannot be read, or does not have these columns.
    """
    try:
        lines = list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot read {path}: {error}", hint) from error
    if not lines or [word.strip() for word in lines[0]] != columns.split(","):
        raise ConfigError(f"{path}, line 1: the columns are not {columns}")
    yield from ((number, words) for number, words in enumerate(lines[1:], 2) if words)


def _read_measured(text: str, batch: int, local_steps: int) -> list[NDArray[np.float64]]:
    if not text.endswith(".csv"):
        return [np.array([local_steps * _step_s(each, batch)]) for each in _read_profiles(text)]
    times: defaultdict[int, list[float]] = defaultdict(list)
    for number, words in read_csv(Path(text), "peer,seconds", "compute", _COMPUTE_HINT):
        try:
            peer, seconds = int(words[0]), float(words[1])
        except (ValueError, IndexError):
            peer = seconds = -1
        if len(words) != 2 or peer < 0 or not 0 < seconds < math.inf:
            raise ConfigError(
                f"{text}, line {number}: {','.join(words)!r} is not a peer and a time above 0",
                "as 3,0.052, in seconds",
            )
        times[peer].append(seconds)
    if not times:
        raise ConfigError(f"{text} has no times")
    return [np.array(times[peer]) for peer in sorted(times)]


def _read_profiles(text: str) -> list[PeerProfile]:
    return [read_profile(Path(word.strip())) for word in text.split(",")]


def _step_s(profile: PeerProfile, batch: int) -> float:
    return sum(layer.forward.at(batch) + layer.backward.at(batch) for layer in profile.layers)


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Properties of the links between peers, the same for all links.

    Attributes:
        delay_s: Bounds of the delay of a message, in seconds. The delay is uniformly distributed
            between them.
        bytes_per_s: Bandwidth of each link; None if the bandwidth of links is unlimited.
        uplink_bytes_per_s: Bandwidth that all payloads from one peer share; None if it is
            unlimited.
    """

    delay_s: tuple[float, float]
    bytes_per_s: float | None = None
    uplink_bytes_per_s: float | None = None

    def transfer_s(self, payload_bytes: float, receivers: int = 1) -> float:
        """Return the time to send a payload to this number of receivers at once, in seconds,
        without the delay. The receivers share the uplink equally, so all transfers end together."""
        link = 0.0 if self.bytes_per_s is None else payload_bytes / self.bytes_per_s
        if self.uplink_bytes_per_s is None:
            return link
        return max(link, receivers * payload_bytes / self.uplink_bytes_per_s)


PRESETS = {
    "loopback": LinkTimes((0.0002, 0.001)),
    "lan": LinkTimes((0.0002, 0.001), 125e6),
    "wifi": LinkTimes((0.0015, 0.01), 25e6),
    "wan": LinkTimes((0.02, 0.05), 12.5e6),
    "cable": LinkTimes((0.014, 0.014), 1e6 / 8),
    "mobile": LinkTimes((0.035, 0.035), 12e6 / 8),
}
"""Name of a preset -> its links. The bandwidth of a link does not depend on other traffic of its
two peers, unless ``uplink`` is added.

- ``loopback``, ``lan``: delays between processes on one host, and between hosts on one switch with
  1 Gbit/s.
- ``wifi``: half of the measured median (3 ms) and 90th percentile (20 ms) of round trips on a
  campus (Sui et al. 2016, MobiSys, doi:10.1145/2906388.2906393); 200 Mbit/s is an assumption.
- ``wan``: an assumption: hosts of one continent, 100 Mbit/s.
- ``cable``, ``mobile``: the profiles Cable (1 Mbit/s uplink, 28 ms round trip) and LTE (12 Mbit/s,
  70 ms round trip) of WebPageTest. A payload uses the uplink of its sender and the downlink of its
  receiver.
"""


def read_links(spec: str) -> LinkTimes:
    """Read the properties of links.

    - The name of a preset, such as ``wan``. Further properties after it override the preset:
      ``wan,uplink:100Mbit``.
    - ``delay:20ms-50ms,bytes:12.5MB,uplink:5MB``: bounds of the delay, bandwidth of a link, and
      bandwidth that all payloads from one peer share. Bandwidths are bytes per second.
    - ``measured:FILE.toml,FILE.toml``: profiles of ``gossip plan`` with measured links. All links
      then have the median bandwidth, and delays between the smallest and the largest measured fixed
      time.

    Raises: ConfigError: ``spec`` is not one of these forms, or a file is not valid.
    """
    if spec.startswith("measured:"):
        return _fit_links(spec.removeprefix("measured:"))
    preset, *changes = (word.strip() for word in spec.split(","))
    if ":" in preset:
        links, changes = LinkTimes((0.0, 0.0)), [preset, *changes]
        if not preset.startswith("delay:"):
            raise ConfigError(f"links {spec!r} have no delay", _LINKS_HINT)
    elif preset in PRESETS:
        links = PRESETS[preset]
    else:
        raise ConfigError(f"there are no links {spec!r}", f"{', '.join(PRESETS)}; or {_LINKS_HINT}")
    for change in changes:
        links = _changed(links, change)
    return links


def _changed(links: LinkTimes, change: str) -> LinkTimes:
    name, _, value = change.partition(":")
    least, dash, most = value.partition("-")
    try:
        if name == "delay":
            bounds = read_duration(least), read_duration(most if dash else least)
        else:
            bounds = (_read_amount(value, UNITS_BYTES),) * 2
    except ValueError:
        bounds = (math.nan,) * 2
    if 0 <= bounds[0] <= bounds[1] < math.inf:
        if name == "delay":
            return replace(links, delay_s=bounds)
        if name == "bytes" and bounds[0] > 0:
            return replace(links, bytes_per_s=bounds[0])
        if name == "uplink" and bounds[0] > 0:
            return replace(links, uplink_bytes_per_s=bounds[0])
    raise ConfigError(f"links: {change!r} is not a property of links", _LINKS_HINT)


def _fit_links(text: str) -> LinkTimes:
    lines = [line for profile in _read_profiles(text) for line in profile.links.values()]
    if not lines:
        raise ConfigError(f"{text} has no measured links", "gossip plan link measures them")
    delays = [line.fixed_s for line in lines]
    each_s = float(np.median([line.each_s for line in lines]))
    return LinkTimes((min(delays), max(delays)), 1 / each_s if each_s > 0 else None)
