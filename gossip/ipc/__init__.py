"""Messages between a trainer and its node over a local socket, and vectors in shared memory."""

from . import messages
from .arena import (
    PAGED_ELEMENTS,
    Arena,
    Vector,
    allocate,
    landing_slots,
    map_bytes,
    map_received,
    map_rows,
)
from .channel import (
    METRICS_MAX,
    PATH_MAX,
    SHAPES_BYTES_MAX,
    Channel,
    ChannelClosed,
    clip,
)
from .messages import (
    EXIT_SIGTERM,
    DivergenceReport,
    JudgeCommand,
    JudgeReply,
    Snapshot,
    StartRoundCommand,
)
