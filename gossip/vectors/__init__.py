"""What the bytes of an update are: the one place that knows how a vector is cut,
compared and summed up."""

from .count_sketch import sketch as sketch
from .digest import PartsDigest as PartsDigest
from .digest import PayloadDigest as PayloadDigest
from .digest import described as described
from .digest import digests_of as digests_of
from .digest import payload_digest as payload_digest
from .encoding import Encoding as Encoding
from .encoding import Float32 as Float32
from .encoding import Shape as Shape
from .encoding import are_finite as are_finite
from .encoding import bytes_for as bytes_for
from .encoding import encoding_names as encoding_names
from .encoding import from_bytes as from_bytes
from .encoding import load_encoding as load_encoding
from .encoding import to_bytes as to_bytes
from .finite import is_finite as is_finite
from .fragments import cut_layers as cut_layers
from .fragments import fragment_of as fragment_of
from .likeness import Admit as Admit
from .likeness import compared as compared
from .likeness import similarity_of as similarity_of
from .sharding import shard_sizes as shard_sizes
from .sharding import unpack_shapes as unpack_shapes
from .wire import PayloadKind as PayloadKind
from .wire import WireFormat as WireFormat
