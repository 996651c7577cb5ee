"""Division, comparison and encoding of the vectors of updates and results. Only this package
interprets the bytes of payloads."""

from .arrays import ByteArray, Vector
from .count_sketch import sketch
from .digest import (
    PartsDigest,
    PayloadDigest,
    described,
    digests_of,
    payload_digest,
)
from .encoding import (
    Encoding,
    Float32,
    Shape,
    are_finite,
    bytes_for,
    from_bytes,
    load_encoding,
    to_bytes,
)
from .finite import is_finite
from .fragments import cut_layers, fragment_of
from .likeness import Admit, compared, similarity_of
from .sharding import shard_sizes, unpack_shapes
from .wire import PayloadKind, WireFormat
