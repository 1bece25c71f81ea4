"""
The page of memory that a lane's clients and its broker share: who has the token, who is next, who asks.

Every word has one writer, and is stored and loaded as a whole; no operation is atomic beyond that, and none has to be.
The token is *the largest word of a row*: each slot has one word in it, and the broker has one. The holder gives the
token away by storing, in its own word, a larger one that names the next slot. The broker takes it back by storing one
of a later generation. A process that was stopped meanwhile, and goes on as if it still had the token, can only store
words of an older generation: they are not the largest, so no process sees them, itself included.

The layout, and who writes which word, is in ``docs/lane-protocol.md``. A process sleeps on a word of the page, and
others wake it up there, by the kernel's futex (:class:`FutexWord`), called through ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import sys
import time
from typing import Final, NamedTuple

VERSION: Final = 1
MAGIC: Final = int.from_bytes(b"PNSTLANE", "little")
MOST_SLOTS: Final = 250
NOBODY: Final = 255
"""In place of a slot: the broker has the token."""
RECALL: Final = 254
"""In place of the next slot: give the token back to the broker before the next iteration."""

AWAY: Final = 0
"""The client does not ask. It may hold the token until another asks: then the broker may take it."""
ASKING: Final = 1
BUSY: Final = 2
"""In an iteration, or about to look whether it holds the token."""
DRAINING: Final = 3
"""Between two iterations, but the device may still be at work for it: the token cannot be taken from it."""

_ROW: Final = 64
_SLOT: Final = 128
_WAKEUP_BITS: Final = 0x7FFF_FFFF
_CALLED: Final = 1 << 24
_TURN_BITS: Final = 40
_SLOT_BITS: Final = 8
FIRST: Final = 1 << _SLOT_BITS | NOBODY
"""The broker's first word: generation 0, turn 1, nobody."""


class BadSharedPage(Exception):
    """What was passed as a lane's page is none, or one of another version."""


class Token(NamedTuple):
    """
    Who holds the token: a word of the row, taken apart. Words compare as their tokens do.

    Attributes
    ----------
    generation : int
        Below 2**16. Goes up when the broker takes the token from a process that may still believe to have it.
    turn : int
        Below 2**40. Goes up with every hand-over.
    slot : int
        Below 2**8.
    """

    generation: int
    turn: int
    slot: int

    @property
    def word(self) -> int:
        """As it is stored."""
        return (self.generation << _TURN_BITS | self.turn) << _SLOT_BITS | self.slot

    @classmethod
    def of(cls, word: int) -> Token:
        """Take a word apart."""
        return cls(word >> _TURN_BITS + _SLOT_BITS, word >> _SLOT_BITS & (1 << _TURN_BITS) - 1, word & NOBODY)


def slot_of(word: int) -> int:
    """Return the slot that a word names."""
    return word & NOBODY


def turn_of(word: int) -> int:
    """Return generation and turn of a word, without the slot."""
    return word >> _SLOT_BITS


def named_word(turn: int, slot: int) -> int:
    """Return what ``named`` says of a turn, with its generation, whose holder gives the token to a slot then."""
    return turn << _SLOT_BITS | slot


def following(word: int, slot: int) -> int:
    """
    Return the word by which the token goes on to a slot, a turn later.

    Examples
    --------
    >>> Token.of(following(Token(generation=3, turn=7, slot=0).word, 5))
    Token(generation=3, turn=8, slot=5)
    """
    return ((word >> _SLOT_BITS) + 1) << _SLOT_BITS | slot


def regenerated(word: int, slot: int) -> int:
    """
    Return the word by which the broker overrules whoever holds the token.

    Examples
    --------
    >>> Token.of(regenerated(Token(generation=3, turn=7, slot=0).word, 5))
    Token(generation=4, turn=8, slot=5)
    """
    return following(word, slot) + (1 << _TURN_BITS + _SLOT_BITS)


def follows(before: int, after: int, slots: int) -> bool:
    """
    Return whether members can have brought the token from one word to another: one successor is named, so by two steps.

    Examples
    --------
    >>> word = Token(generation=3, turn=7, slot=0).word
    >>> [follows(word, after, slots=2) for after in (following(word, 1), following(word, 2), 0)]
    [True, False, False]
    """
    return 1 <= turn_of(after) - turn_of(before) <= 2 and (slot_of(after) == NOBODY or slot_of(after) < slots)


class SharedPage:
    """
    A lane's page, mapped.

    Parameters
    ----------
    fd : int
        Of the memory; the page keeps it, or closes it where it raises.

    Attributes
    ----------
    words : memoryview of 8-byte words
        All of it. Indices are offsets divided by 8.
    slots : int
    row : int
        Index of the broker's word in the row; that of slot ``i`` is ``row + 1 + i``.

    Raises
    ------
    BadSharedPage
        If the memory holds no page of this version.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self._map()
        except BaseException:
            self.close()
            raise
        self.row = _ROW // 8
        self._first = _slots_at(self.slots) // 8
        self._used: int | None = None
        self._quantum: tuple[int, int] | None = None
        self._wakeup_words: dict[int, FutexWord] = {}

    def _map(self) -> None:
        size = os.fstat(self.fd).st_size
        if size < _ROW:
            raise BadSharedPage(f"a lane's page has {size} bytes; expected at least {_ROW}")
        self._memory = memoryview(mmap.mmap(self.fd, size))
        self.words = self._memory.cast("Q")
        magic, version, self.slots = self.words[0], self.words[1], self.words[2]
        if magic != MAGIC or version != VERSION:
            raise BadSharedPage(
                f"a lane's page begins with {magic:#x}, version {version}; expected {MAGIC:#x}, {VERSION}"
            )
        if self.slots > MOST_SLOTS or size < _size(self.slots):
            raise BadSharedPage(
                f"a lane's page of {size} bytes says it has {self.slots} slots; expected {MOST_SLOTS} at most"
            )

    @classmethod
    def make(cls, slots: int = MOST_SLOTS) -> SharedPage:
        """Return a new page whose token nobody has; in memory that ends with the last process that has mapped it."""
        if not 1 <= slots <= MOST_SLOTS:
            raise ValueError(f"{slots} slots are out of range; expected 1 to {MOST_SLOTS}")
        fd = os.memfd_create("penstock-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(fd, 0o600)  # it comes to its members by their sockets, and to nobody by a path of /proc
        os.ftruncate(fd, _size(slots))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)  # no member can take it from others
        with mmap.mmap(fd, _size(slots)) as memory, memoryview(memory) as view, view.cast("Q") as words:
            words[0], words[1], words[2], words[4] = MAGIC, VERSION, slots, 1
            words[_ROW // 8] = FIRST
        return cls(fd)

    @property
    def used(self) -> int:
        """Slots that were ever given out: the row is looked at so far. Who has set it believes no page about it."""
        return min(self.words[3], self.slots) if self._used is None else self._used

    @used.setter
    def used(self, slots: int) -> None:
        self.words[3] = self._used = slots

    @property
    def quantum(self) -> tuple[int, int]:
        """Iterations, and nanoseconds (0: any), after one of which a turn is over."""
        return self.words[4], self.words[5]

    @quantum.setter
    def quantum(self, quantum: tuple[int, int]) -> None:
        self.words[4], self.words[5] = self._quantum = quantum

    def mend(self) -> None:
        """Write the head anew, which is the broker's: members believe what stands there."""
        words = self.words
        words[0], words[1], words[2], words[3] = MAGIC, VERSION, self.slots, self.used
        if self._quantum is not None:
            words[4], words[5] = self._quantum

    def token(self) -> int:
        """Return the word that counts: the largest of the row."""
        return max(self.row_words())

    def row_words(self) -> list[int]:
        """
        Return the row: the broker's word, and those of the slots.

        Where a member has written that more slots were given out, it is as long as others take it to be: who finds a
        token behind the last of them believes to have it.
        """
        used = self.words[3] if self._used is None else max(self.words[3], self._used)
        return self.words[self.row : self.row + 1 + min(used, self.slots)].tolist()

    @property
    def is_plausible(self) -> bool:
        """Whether its token may have come about by turns: there is room for more, and somebody or nobody has it."""
        token = Token.of(self.token())
        early = token.generation < 1 << 15 and token.turn < 1 << _TURN_BITS - 1
        return early and (token.slot == NOBODY or token.slot < self.used)

    def first_word(self, number: int) -> int:
        """Return the index of a slot's first word."""
        return self._first + number * (_SLOT // 8)

    def wakeup_word(self, number: int) -> FutexWord:
        """Return the word that a slot sleeps on."""
        word = self._wakeup_words.get(number)
        if word is None:
            word = self._wakeup_words[number] = FutexWord(self._memory, (self.first_word(number) + WAKEUP) * 8)
        return word

    def wake(self, number: int, token: int) -> None:
        """Wake a slot up: it has been given a token."""
        word = self.wakeup_word(number)
        word.value.value = turn_of(token) & _WAKEUP_BITS
        word.wake()

    def haste(self, number: int) -> FutexWord:
        """Return the word that a slot's second thread sleeps on."""
        return FutexWord(self._memory, (self.first_word(number) + HASTE) * 8)

    def hasten(self, number: int) -> None:
        """Have a draining member finish what it began on the device."""
        word = self.haste(number)
        word.value.value += 1
        word.wake()

    def notify(self, number: int) -> None:
        """Wake a slot up to look around: not at the row alone, as for a token."""
        word = self.wakeup_word(number)
        word.value.value += _CALLED  # wraps round; not back and forth: two calls in a row have to be seen, too
        word.wake()

    @property
    def is_sealed(self) -> bool:
        """Whether nobody can make it shorter, so that looking at it is safe."""
        return bool(fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)

    def close(self) -> None:
        """Let go of the descriptor; the mapping goes with the last reference to it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


(
    NAMED,
    STATE,
    WAKEUP,
    LETTER,
    ITERATIONS,
    HELD_NS,
    TURNS,
    SINCE_NS,
    LEAST_NS,
    HASTE,
    PACE_NS,
    KEEN,
    BEGUN,
) = range(13)
"""Words of a slot, from its first; each has one writer, but the one to sleep on (``docs/lane-protocol.md``)."""


def _slots_at(slots: int) -> int:
    return (_ROW + 8 * (slots + 1) + _SLOT - 1) // _SLOT * _SLOT


def _size(slots: int) -> int:
    return _slots_at(slots) + _SLOT * slots


_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_WAIT: Final = 0  # not the private operations: the word is shared between processes
_WAKE: Final = 1
_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


LOOK_S: Final = 0.0005
_libc: Final = ctypes.CDLL(None, use_errno=True)
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long
_NULL: Final = ctypes.c_void_p(None)
_ZERO: Final = ctypes.c_int(0)
_ONE: Final = ctypes.c_int(1)


def available() -> bool:
    """Return whether this kernel has futexes that we know how to call: Linux on x86-64 or aarch64."""
    return _FUTEX is not None and sys.platform.startswith("linux")


class FutexWord:
    """
    A word of 4 bytes to sleep on. Where futexes are not :func:`available`, it is looked at every :data:`LOOK_S`.

    Parameters
    ----------
    buffer : writable buffer
        Shared memory.
    offset : int
        In bytes; a multiple of 4.
    """

    def __init__(self, buffer: memoryview, offset: int) -> None:
        self.value = ctypes.c_uint32.from_buffer(buffer, offset)
        self._at = ctypes.byref(self.value)

    def wake(self) -> None:
        """Wake whoever sleeps on it."""
        if _FUTEX is None:
            return
        _syscall(_FUTEX, self._at, _WAKE, _ONE, _NULL, _NULL, _ZERO)

    def wait(self, seen: int, timeout_s: float) -> None:
        """
        Sleep while the word is as it was seen, until woken, interrupted by a signal, or for so many seconds.

        It may also return for no reason: whoever calls it looks again.

        Raises
        ------
        OSError
            If the kernel refuses.
        """
        if _FUTEX is None:
            time.sleep(min(LOOK_S, timeout_s))
            return
        whole = int(timeout_s)
        limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
        expected = ctypes.c_uint32(seen)
        if _syscall(_FUTEX, self._at, _WAIT, expected, ctypes.byref(limit), _NULL, _ZERO) < 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
                raise OSError(code, f"futex wait: {os.strerror(code)}")


def register_fences() -> bool:
    """Let :func:`fence` of other processes reach this one; return whether the kernel has it (Linux 4.16)."""
    return _MEMBARRIER is not None and _syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, _ZERO, _ZERO) == 0


def fence() -> bool:
    """
    Have every registered process that runs now pass a full memory barrier; return whether the kernel did it.

    What they stored before it is seen by loads after it, and what was stored here before it is seen by their loads
    after it. So one side of a store-then-load pair needs no barrier of its own.
    """
    return _MEMBARRIER is not None and _syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, _ZERO, _ZERO) == 0
