"""What a trainer and its node say to each other: messages over a local socket,
vectors in shared memory."""

from . import messages
from .arena import (
    PAGED_ELEMENTS,
    Arena,
    Vector,
    allocate,
    landing_slots,
    map_bytes,
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
    ConfirmReply,
    ConfirmRequest,
    DivergenceReport,
    JudgeCommand,
    JudgeReply,
    LedgerReply,
    LedgerRequest,
    Snapshot,
    StartRoundCommand,
)
