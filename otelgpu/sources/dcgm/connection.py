"""The connection to the engine: to one that runs somewhere, or one that is started in this process.

Rule 1: letting go never overlaps another call: whoever asks the engine does it inside `door.call`.
Rule 2: `open` and `close` are called from one thread at a time.
Rule 3: an engine in this process changes the working directory of the process, which is changed back.
"""

import ctypes
import logging
import os
from collections.abc import Callable

from otelgpu.errors import SourceDownError
from otelgpu.sources.dcgm.errors import CONNECTION, DISCONNECTED, DcgmError
from otelgpu.sources.dcgm.library import Library
from otelgpu.sources.dcgm.structs import MODE_AUTO, ConnectParams, EmbeddedParams, Handle, VersionInfo, version_of
from otelgpu.sources.door import Door

logger = logging.getLogger(__name__)

UNIX = "unix://"
LOCAL = (UNIX, "localhost:", "127.", "[::1]:")  # what the address of an engine on this machine begins with


class Connection:
    """This process's connection to the engine at *address* ("": one of its own). `number` counts them.

    *release* gives back what was taken from the engine before the connection closes. Connecting takes *patience*
    seconds at most.
    """

    def __init__(self, library: Library, address: str, *, release: Callable[[], None], patience: float) -> None:
        self.number = 0
        self.version = ""  # of the engine
        self._library = library
        self._address = address
        self._release = release
        self._patience = patience
        self._handle: int | None = None
        self._is_suspect = self._is_initialized = False
        self._nobody = f"there is no connection to {self.place}"
        self.door = Door(self._nobody)

    @property
    def is_local(self) -> bool:
        """Whether the engine goes by this machine's clock."""
        return not self._address or self._address.startswith(LOCAL)

    @property
    def place(self) -> str:
        """Say which engine this is."""
        return f"the host engine at {self._address}" if self._address else "the engine in this process"

    def ask(self, name: str, *arguments: object) -> None:
        """Call a function of libdcgm with the handle before the arguments. Raise DcgmError."""
        handle = self._handle
        if handle is None:
            raise DcgmError(name, CONNECTION, self._nobody)
        try:
            self._library.call(name, handle, *arguments)
        except DcgmError as error:
            if error.code in DISCONNECTED:
                self._is_suspect = True
            raise

    def open(self) -> None:
        """Connect, where that is still to be done or the connection before is gone. Raise SourceDownError."""
        if self._is_suspect and not self.close():
            raise SourceDownError(f"{self.place} is gone; and a call to it has not returned")
        if self.door.is_open:
            return
        try:
            if not self._is_initialized:
                self._library.call("dcgmInit")
                self._is_initialized = True
            handle = self._connected() if self._address else self._started()
        except DcgmError as error:
            raise SourceDownError(f"{self.place} does not answer: {error}") from error
        self._handle = handle
        self.version = self._told_version()
        self.number += 1
        self.door.open()

    def close(self) -> bool:
        """Let go of the engine. False when it holds a call: then all is left as it is."""
        if not self.door.shut():
            return False
        handle, is_gone = self._handle, self._is_suspect
        if handle is not None:
            if not is_gone:
                self._release()  # of an engine that is gone there is nothing to give back
            self._handle = None
            self._leave("dcgmDisconnect" if self._address else "dcgmStopEmbedded", handle)
        if self._is_initialized:
            self._is_initialized = False
            self._leave("dcgmShutdown")
        self._is_suspect = False
        return True

    def _leave(self, name: str, *arguments: object) -> None:
        try:
            self._library.call(name, *arguments)
        except DcgmError as error:
            logger.debug("%s: %s", self.place, error)  # an engine that is gone does not take leave

    def _connected(self) -> int:
        is_unix = self._address.startswith(UNIX)
        params = ConnectParams(
            version=version_of(ConnectParams),
            timeoutMs=max(int(self._patience * 1000), 1),  # 0 would mean five seconds
            addressIsUnixSocket=is_unix,
        )
        handle = Handle()
        address = self._address.removeprefix(UNIX).encode()
        self._library.call("dcgmConnect_v2", address, ctypes.byref(params), ctypes.byref(handle))
        return handle.value

    def _started(self) -> int:
        params = EmbeddedParams(version=version_of(EmbeddedParams), opMode=MODE_AUTO)
        here = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            self._library.call("dcgmStartEmbedded_v2", ctypes.byref(params))
        finally:
            os.fchdir(here)
            os.close(here)
        if not params.dcgmHandle:  # what the second of two engines in one process gets, with the code for success
            raise DcgmError("dcgmStartEmbedded_v2", CONNECTION, "there is one in this process already")
        return int(params.dcgmHandle)

    def _told_version(self) -> str:
        info = VersionInfo(version=version_of(VersionInfo))
        try:
            self.ask("dcgmHostengineVersionInfo", ctypes.byref(info))
        except DcgmError:
            return ""
        told: bytes = info.rawBuildInfoString
        parts = dict(part.partition(":")[::2] for part in told.decode(errors="replace").split(";"))
        return parts.get("version", "")
