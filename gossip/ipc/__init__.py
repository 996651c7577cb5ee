"""What a trainer and its node say to each other: messages over a local socket,
vectors in shared memory."""

from . import messages as messages
from .arena import (
    PAGED_ELEMENTS as PAGED_ELEMENTS,
    Arena as Arena,
    Vector as Vector,
    allocate as allocate,
    landing_slots as landing_slots,
    map_bytes as map_bytes,
    map_rows as map_rows,
)
from .channel import (
    METRICS_MAX as METRICS_MAX,
    PATH_MAX as PATH_MAX,
    SHAPES_BYTES_MAX as SHAPES_BYTES_MAX,
    Channel as Channel,
    ChannelClosed as ChannelClosed,
    clip as clip,
)
from .messages import (
    EXIT_SIGTERM as EXIT_SIGTERM,
    ConfirmReply as ConfirmReply,
    ConfirmRequest as ConfirmRequest,
    DivergenceReport as DivergenceReport,
    JudgeCommand as JudgeCommand,
    JudgeReply as JudgeReply,
    LedgerReply as LedgerReply,
    LedgerRequest as LedgerRequest,
    Snapshot as Snapshot,
    StartRoundCommand as StartRoundCommand,
)
