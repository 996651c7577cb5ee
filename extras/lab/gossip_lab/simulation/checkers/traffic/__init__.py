"""Traffic checkers: the number of messages that a peer sends."""

from . import replies
from .rates import BoundedMessageRates, BoundedRumorTransmissions
