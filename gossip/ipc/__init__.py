"""What a trainer and its node say to each other: messages over a local socket, vectors in shared memory."""

from . import messages as messages
from .arena import Arena as Arena
from .arena import Vector as Vector
from .arena import allocate as allocate
from .arena import map_bytes as map_bytes
from .arena import map_rows as map_rows
from .channel import METRICS_MAX as METRICS_MAX
from .channel import Channel as Channel
from .channel import ChannelClosed as ChannelClosed
from .channel import clip as clip
from .messages import Confirm as Confirm
from .messages import Confirmed as Confirmed
from .messages import Go as Go
from .messages import Judge as Judge
from .messages import Judged as Judged
from .messages import Snapshot as Snapshot
