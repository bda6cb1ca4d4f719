"""Passwords, checked against bcrypt hashes in a thread of their own.

Rule 1: one check at a time, and MOST_WAITING that wait: a flood of wrong passwords costs one core, and no memory.
Rule 2: a password that was right is known again by a keyed hash, which is all that is kept of it. What was wrong is
        checked each time, so that nobody can push the right ones out.
Rule 3: an unknown user costs what a known one does.
"""

import asyncio
import base64
import hmac
import os
from collections.abc import Mapping
from contextlib import suppress

import bcrypt

from otelgpu.worker import Worker

MOST_WAITING = 8
LONGEST = 72  # bytes of a password that bcrypt looks at; its Python package refuses longer ones, Go cuts them too
PATIENCE = 60.0  # seconds for a check


class TooManyError(Exception):
    """So many passwords are waiting to be checked that this one is not."""


class Passwords:
    """Knows which passwords are right. To be used on one loop alone."""

    def __init__(self) -> None:
        self._worker = Worker("otelgpu-password")
        self._secret = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def is_right(self, users: Mapping[str, bytes], user: str, password: bytes) -> bool:
        """Whether it is the password of a user, whose hashes are in *users*. Raise TooManyError."""
        expected = users.get(user) or _nobody(users)
        mark = self._mark(user.encode("utf-8", "surrogateescape"), expected, password)
        if self._is_known(user, mark):
            return True
        if self._waiting >= MOST_WAITING:
            raise TooManyError
        self._waiting += 1
        try:
            async with self._turn:
                # Somebody else may have brought the same meanwhile.
                is_right = self._is_known(user, mark) or await self._check(password, expected)
        finally:
            self._waiting -= 1
        if is_right and user in users:
            self._right[user] = mark
            return True
        return False

    def stop(self) -> None:
        """Check none any more; the thread ends."""
        self._worker.stop()

    def _mark(self, *parts: bytes) -> bytes:
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._secret, whole, "sha256")

    def _is_known(self, user: str, mark: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), mark)

    async def _check(self, password: bytes, expected: bytes) -> bool:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[bool] = loop.create_future()

        def settle(is_right: bool) -> None:  # noqa: FBT001 - as Worker calls it
            if not result.done():
                result.set_result(is_right)

        def deliver(is_right: bool) -> None:  # noqa: FBT001 - the same
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, is_right)

        if not self._worker.offer(lambda: _matches(password, expected), deliver):
            raise TooManyError  # there is no thread to be had, or the last check has not ended
        try:
            return await asyncio.wait_for(result, PATIENCE)
        except TimeoutError:
            raise TooManyError from None


def credentials(header: str) -> tuple[str, bytes] | None:
    """Read user and password from an Authorization header; None where it holds none."""
    scheme, _, coded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return (user.decode("utf-8", "surrogateescape"), password) if colon else None


def _matches(password: bytes, expected: bytes) -> bool:
    try:
        return bcrypt.checkpw(password[:LONGEST], expected)
    except ValueError:  # a NUL in a password, which bcrypt does not know
        return False


def _nobody(users: Mapping[str, bytes]) -> bytes:
    """Give a hash that costs as much as those of the users; nobody's password leads to it."""
    return max(hashed[:7] for hashed in users.values()) + b"." * 53
