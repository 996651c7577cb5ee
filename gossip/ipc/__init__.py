"""What a trainer and its node say to each other: messages over a local socket,
vectors in shared memory."""

from . import messages as messages
from .arena import PAGED_ELEMENTS as PAGED_ELEMENTS
from .arena import Arena as Arena
from .arena import Vector as Vector
from .arena import allocate as allocate
from .arena import landing_slots as landing_slots
from .arena import map_bytes as map_bytes
from .arena import map_rows as map_rows
from .channel import METRICS_MAX as METRICS_MAX
from .channel import PATH_MAX as PATH_MAX
from .channel import SHAPES_BYTES_MAX as SHAPES_BYTES_MAX
from .channel import Channel as Channel
from .channel import ChannelClosed as ChannelClosed
from .channel import clip as clip
from .messages import EXIT_SIGTERM as EXIT_SIGTERM
from .messages import ConfirmReply as ConfirmReply
from .messages import ConfirmRequest as ConfirmRequest
from .messages import DivergenceReport as DivergenceReport
from .messages import JudgeCommand as JudgeCommand
from .messages import JudgeReply as JudgeReply
from .messages import LedgerReply as LedgerReply
from .messages import LedgerRequest as LedgerRequest
from .messages import Snapshot as Snapshot
from .messages import StartRoundCommand as StartRoundCommand
