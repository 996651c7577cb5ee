"""Handing over the state of a training to who joins, returns or has lost the thread."""

from .chunks import PIECE_BYTES as PIECE_BYTES
from .chunks import described as described
from .chunks import outline_of as outline_of
from .donor import COPIES_MAX as COPIES_MAX
from .donor import TAKERS_MAX as TAKERS_MAX
from .donor import CopyExpires as CopyExpires
from .donor import parts_of as parts_of
from .donor import vouched_digest as vouched_digest
from .receiver import REMIND_S as REMIND_S
from .receiver import AskAnother as AskAnother
from .receiver import Recovery as Recovery
