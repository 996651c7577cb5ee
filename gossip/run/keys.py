"""Files with keys. A key pair is in a file that only its owner may read. A list of admitted keys
may change during a run."""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from hashlib import blake2b
from pathlib import Path

from gossip.errors import ConfigError
from gossip.transport import KEY_CHARS, KeyPair, is_key, new_pair, public_of

SWARM_KEY = "swarm.key"
"""File in a run's folder. A process that has its key may use the join servers of the run."""
FILE_BYTES_MAX = 4096
MAKE_ONE = "make one with: gossip keygen FILE"
LIST_BYTES_MAX = 2**20


def fingerprint(public: str) -> str:
    """Return a digest of a public key that people can compare: ``3f2a-91c0-77de-04b1-5c2e``."""
    digest = blake2b(public.encode("ascii"), digest_size=10).hexdigest()
    return "-".join(digest[at : at + 4] for at in range(0, len(digest), 4))


def make_pair(path: Path | str) -> KeyPair:
    """Make a new pair, and write it to a new file. Raises: ConfigError: As ``write_pair``."""
    pair = new_pair()
    write_pair(path, pair)
    return pair


def write_pair(path: Path | str, pair: KeyPair) -> None:
    """Write a pair atomically to a new file that only its owner can read.

    Raises: ConfigError: The file exists already or cannot be written, or its file system stores no
        permissions.
    """
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    text = f"# a key of gossip: keep it to yourself\n{dump_pair(pair).decode('ascii')}"
    try:
        with open(
            os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600),
            "w",
            encoding="ascii",
        ) as file:
            os.fchmod(file.fileno(), 0o600)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"others could read {path}: its file system keeps no permissions (mode "
                    f"{mode:04o})",
                    "choose a folder on a file system that keeps them",
                )
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces an existing key.
        os.link(scratch, path)
    except FileExistsError:
        raise ConfigError(
            f"there is a file {path} already",
            "a key is never overwritten: move the file away, or name another",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot write the key {path}: {error.strerror or error}", "choose a folder of your own"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def read_pair(path: Path | str) -> KeyPair:
    """Read a pair from a file. Raises: ConfigError: The file cannot be read, other users can read
    it, it belongs to another user, or it has no key pair."""
    return parse_pair(_read(path), str(path))


def _read(path: Path | str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode, owner = os.fstat(file.fileno()).st_mode, os.fstat(file.fileno()).st_uid
            data = file.read(FILE_BYTES_MAX + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError(
            f"cannot read the key {path}: {error.strerror or error}", MAKE_ONE
        ) from error
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a file", MAKE_ONE)
    if owner not in (os.geteuid(), 0):
        raise ConfigError(
            f"the key {path} belongs to another user, so it is not a secret", MAKE_ONE
        )
    if mode & 0o077:
        raise ConfigError(
            f"others can read the key {path} (mode {stat.S_IMODE(mode):04o})", _repair(path, mode)
        )
    return data


def parse_pair(data: bytes, source: str) -> KeyPair:
    """Return the key pair in the content of a key file. The content may also arrive through a file
    descriptor or stdin.

    Args:
        source: Origin of ``data``, for error messages. Error messages never show ``data``, which
            may be secret.
    Raises: ConfigError: The data is not a pair of keys.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"{source} is not a key of gossip: it has more than {FILE_BYTES_MAX} bytes", MAKE_ONE
        )
    try:
        fields = tomllib.loads(data.decode("ascii"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        # Not chained, because the first exception would show the contents.
        raise ConfigError(f"{source} is not a key of gossip", MAKE_ONE) from None
    public, secret = fields.get("public"), fields.get("secret")
    for name, value in (("public", public), ("secret", secret)):
        if not is_key(value):
            what = f"no {name} = ..." if value is None else f"no {name} key of 40 characters"
            raise ConfigError(f"{source} is not a key of gossip: it has {what}", MAKE_ONE)
    assert isinstance(public, str), "a key is text"
    assert isinstance(secret, str), "a key is text"
    if public_of(secret) != public:
        raise ConfigError(
            f"{source} is not a key of gossip: its two halves do not belong together", MAKE_ONE
        )
    return KeyPair(public, secret)


def dump_pair(pair: KeyPair) -> bytes:
    """Return a pair in the form that ``parse_pair`` reads. Send it through a file descriptor or
    stdin, never through arguments or the environment."""
    return f'public = "{pair.public}"\nsecret = "{pair.secret}"\n'.encode("ascii")


def _repair(path: Path | str, excess: int) -> str:
    if excess & 0o022:
        return (
            "others may have replaced it: make another with gossip keygen, or trust it with chmod "
            f"600 {path}"
        )
    return f"chmod 600 {path}, and make another if other users may have read it"


class AllowList:
    """List of admitted public keys. Each line of the text file has a key, and perhaps a name.
    Comments begin with ``#``.

    The file is read again whenever it has changed. If the file is missing, no key is admitted.
    Invalid lines are ignored, and listed in ``wrong``.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.wrong: list[str] = []
        """Messages about invalid lines in the file."""
        self._names: dict[str, str] = {}
        self._stamp: tuple[int, int, int] | None = None

    def name_of(self, key: str) -> str | None:
        """Return the name of an admitted key; None if the key is not admitted."""
        self._reload()
        return self._names.get(key)

    def check(self) -> None:
        """Check the file when the run starts. Later, invalid lines are only ignored. Raises:
        ConfigError: There is no such file, or a line in it is not a key."""
        self._reload()
        if self.wrong or not self.path.is_file():
            what = self.wrong[0] if self.wrong else f"there is no file {self.path}"
            raise ConfigError(
                what, "each line has a public key (gossip keygen --show FILE), and perhaps a name"
            )

    def keys(self) -> dict[str, str]:
        """Return each admitted key with its name."""
        self._reload()
        return dict(self._names)

    def _reload(self) -> None:
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            text = self.path.read_bytes()[:LIST_BYTES_MAX].decode("utf-8", "replace")
        except FileNotFoundError:
            self._names, self._stamp, self.wrong = {}, None, []
            return
        except OSError as error:
            # If the file cannot be read, no key is admitted.
            self._names, self._stamp, self.wrong = (
                {},
                None,
                [f"cannot read {self.path}: {error.strerror or error}"],
            )
            return
        self._names, self.wrong = parse_list(text, str(self.path))
        self._stamp = stamp


def parse_list(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """Return the keys of a list with their names, and messages about its invalid lines."""
    names: dict[str, str] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and is_key(words[0]):
            names[words[0]] = " ".join(words[1:]) or fingerprint(words[0])
        elif words and not words[0].startswith("#"):
            # no key starts with "#": as a first digit of base 85 it would exceed 32 bits
            wrong.append(
                f"{source}:{number}: {words[0][:12]!r}... is not a public key of {KEY_CHARS} "
                "characters"
            )
    return names, wrong
