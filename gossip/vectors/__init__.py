"""What the bytes of an update are: the one place that knows how a vector is cut,
compared and summed up."""

from .count_sketch import sketch as sketch
from .digest import (
    PartsDigest as PartsDigest,
    PayloadDigest as PayloadDigest,
    described as described,
    digests_of as digests_of,
    payload_digest as payload_digest,
)
from .encoding import (
    Encoding as Encoding,
    Float32 as Float32,
    Shape as Shape,
    are_finite as are_finite,
    bytes_for as bytes_for,
    encoding_names as encoding_names,
    from_bytes as from_bytes,
    load_encoding as load_encoding,
    to_bytes as to_bytes,
)
from .finite import is_finite as is_finite
from .fragments import cut_layers as cut_layers, fragment_of as fragment_of
from .likeness import Admit as Admit, compared as compared, similarity_of as similarity_of
from .sharding import shard_sizes as shard_sizes, unpack_shapes as unpack_shapes
from .wire import PayloadKind as PayloadKind, WireFormat as WireFormat
