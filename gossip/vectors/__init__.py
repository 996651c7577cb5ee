"""What the bytes of an update are: the one place that knows how a vector is cut,
compared and summed up."""

from .count_sketch import sketch as sketch
from .finite import is_finite as is_finite
from .likeness import Admit as Admit
from .likeness import compared as compared
from .likeness import similarity_of as similarity_of
from .sharding import shard_sizes as shard_sizes
