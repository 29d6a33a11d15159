"""The client of the Sidecore daemon: kernels on dedicated cores, called from Python.

>>> import sidecore_offload
>>> client = sidecore_offload.Client(SOCKET)
>>> client.call("sum_f64", [array.array("d", [1.25, 2.25])]).as_double()
3.5

Bytes that many calls use lie in a buffer, which engines read and write in place. NumPy looks at the same
memory (``numbers = buffer.array("f8")``), and nothing is copied:

>>> buffer = client.buffer(16)
>>> memoryview(buffer.view()).cast("B")[:] = struct.pack("2d", 40, 2)
>>> client.call("sum_f64", [buffer]).as_double()
42.0

Up to 1,024 jobs are open at once; they end in any order:

>>> mine = {client.submit("sum_f64", [struct.pack("d", n)]): n for n in range(8)}
>>> sorted(mine[done.token] - int(done.as_double()) for done in client.completed())
[0, 0, 0, 0, 0, 0, 0, 0]

Where the daemon ends, a call raises `Lost`, and the work is the caller's to do. This module needs
libsidecore (`SIDECORE_LIBRARY` names another file) and nothing else; NumPy only for `array`.
"""

import array
import ctypes
import errno
import os
import struct
import threading

__version__ = "0.2.0"
__all__ = ["Answer", "Buffer", "Client", "Failed", "Lost", "frame_words"]

WORDS, RANGES, SEGMENTS, JOBS, TEXT = 6, 4, 16, 1024, 65

# Formats of frames, for `frame_words`.
YUV_I420 = 1
YUV_YV12 = 2
YUV_I422 = 3
YUV_I444 = 4
YUV_NV12 = 5
YUV_NV21 = 6
YUV_YUY2 = 7
YUV_UYVY = 8
RGB_RGB = 1
RGB_BGR = 2
RGB_RGBA = 3
RGB_BGRA = 4
MATRIX_BT601 = 1
MATRIX_BT709 = 2
MATRIX_BT2020 = 3
LEVELS_LIMITED = 1
LEVELS_FULL = 2

_INTERFACE = ".".join(__version__.split(".")[: 2 if __version__.startswith("0.") else 1])


def frame_words(yuv, rgb, width, height, matrix=MATRIX_BT601, levels=LEVELS_LIMITED, rows=None, strides=(0, 0, 0)):
    """Words of a call of `yuv_to_rgb` or `rgb_to_yuv` for one frame, or for a range of its rows. `strides` are bytes
    from a row to the next of luma (or of the one plane), of chroma and of RGB; 0 for rows without a gap.

    >>> [hex(word) for word in frame_words(YUV_NV12, RGB_BGRA, 640, 480, rows=range(0, 240))]
    ['0x0', '0x1010405', '0x1e000000280', '0x0', '0x0', '0xf000000000']
    """
    formats = yuv | rgb << 8 | matrix << 16 | levels << 24
    band = 0 if rows is None else rows.start | len(rows) << 32
    luma, chroma, packed = strides
    return [0, formats, width | height << 32, luma | chroma << 32, packed, band]


class Lost(ConnectionError):
    """The daemon ended before it answered: do the work yourself, or attach anew."""


class Failed(RuntimeError):
    """The kernel reported an error; its text is the exception's."""


class _Raw(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("own", ctypes.c_int),
        ("offset", ctypes.c_uint64),
        ("home", ctypes.c_void_p),
    ]


class _Request(ctypes.Structure):
    _fields_ = [
        ("words", ctypes.c_uint64 * WORDS),
        ("inputs", ctypes.POINTER(_Raw) * RANGES),
        ("outputs", ctypes.POINTER(_Raw) * RANGES),
        ("input_count", ctypes.c_int),
        ("output_count", ctypes.c_int),
        ("reply", ctypes.c_uint64 * WORDS),
        ("text", ctypes.c_char * TEXT),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("path", ctypes.c_char_p),
        ("arena_bytes", ctypes.c_uint64),
        ("trusted_uid", ctypes.c_int64),
        ("silence_ms", ctypes.c_uint32),
    ]


class _Segment(ctypes.Structure):
    _fields_ = [("buffer", ctypes.POINTER(_Raw)), ("offset", ctypes.c_size_t), ("bytes", ctypes.c_size_t)]


class _Job(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint64),
        ("kernel", ctypes.c_int),
        ("input_count", ctypes.c_int),
        ("output_count", ctypes.c_int),
        ("words", ctypes.c_uint64 * WORDS),
        ("segments", _Segment * SEGMENTS),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("reply", ctypes.c_uint64 * WORDS),
        ("text", ctypes.c_char * TEXT),
    ]


def _load():
    library = ctypes.CDLL(os.environ.get("SIDECORE_LIBRARY", "libsidecore.so." + _INTERFACE))
    pointer, number, raw = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Raw)
    for name, result, arguments in (
        ("sidecore_attach_with", number, [ctypes.POINTER(pointer), ctypes.POINTER(_Options)]),
        ("sidecore_attach_text", ctypes.c_char_p, [number]),
        ("sidecore_detach", None, [pointer]),
        ("sidecore_kernel", number, [pointer, ctypes.c_char_p]),
        ("sidecore_engines", number, [pointer]),
        ("sidecore_alloc", _Raw, [pointer, ctypes.c_size_t]),
        ("sidecore_free", None, [raw]),
        ("sidecore_call", number, [pointer, number, ctypes.POINTER(_Request)]),
        ("sidecore_call_on", number, [pointer, ctypes.c_uint32, number, ctypes.POINTER(_Request)]),
        ("sidecore_rescue", number, [ctypes.POINTER(_Request)]),
        ("sidecore_submit", number, [pointer, ctypes.POINTER(_Job), ctypes.POINTER(ctypes.c_uint64)]),
        ("sidecore_poll", number, [pointer, ctypes.POINTER(_Outcome)]),
        ("sidecore_wait", number, [pointer, ctypes.POINTER(_Outcome), number]),
        ("sidecore_cancel", number, [pointer, ctypes.c_uint64]),
        ("sidecore_descriptor", number, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Attachment:
    """Owned by a client and by all of its buffers: the last one detaches, and unmaps the arena."""

    def __init__(self, library, options):
        self.library, self.pointer = library, ctypes.c_void_p()
        error = library.sidecore_attach_with(ctypes.byref(self.pointer), ctypes.byref(options))
        if error != 0:
            text = library.sidecore_attach_text(error).decode()
            raise OSError(-error, text, options.path and os.fsdecode(options.path))

    def __del__(self):
        if self.pointer:
            self.library.sidecore_detach(self.pointer)


class Buffer:
    """Memory that engines read and write in place; made by `Client.buffer`."""

    def __init__(self, attachment, length):
        # A place of its own in the arena also for no bytes.
        raw = attachment.library.sidecore_alloc(attachment.pointer, max(length, 1))
        self._attachment, self._raw = attachment, raw
        if not raw.data:
            raise MemoryError(f"no room for {length} bytes in the arena, or the daemon is gone")
        raw.bytes = length

    def __len__(self):
        return self._raw.bytes

    def view(self):
        """The bytes as an object with the buffer protocol. It keeps them alive. Ask anew after a call that was
        lost and whose output this was: the bytes have moved."""
        view = (ctypes.c_ubyte * self._raw.bytes).from_address(self._raw.data)
        view._owner = self
        return view

    def array(self, dtype="u1"):
        """The bytes as a NumPy array, not copied."""
        import numpy

        return numpy.frombuffer(self.view(), dtype)

    def __bytes__(self):
        return bytes(self.view())

    def __del__(self):
        # Made in part only, where there was no room.
        if getattr(self, "_raw", None) is not None and self._raw.data:
            self._attachment.library.sidecore_free(ctypes.byref(self._raw))


class Answer:
    """What a kernel replied: six words, and of a job the token that `submit` gave."""

    __slots__ = ("words", "token")

    def __init__(self, words, token=None):
        self.words, self.token = tuple(words), token

    def as_double(self, word=0):
        """A word as the double whose bits it holds."""
        return struct.unpack("d", struct.pack("Q", self.words[word]))[0]

    def __repr__(self):
        return f"Answer(words={self.words}, token={self.token})"


class Client:
    """An attachment to a daemon. Any thread may call; a child process makes a client of its own.

    Without a path it looks for the own user's daemon, then for the system's. OSError where none serves, or where
    another user's does that is not `trusted_uid`.
    """

    def __init__(self, path=None, arena_bytes=16 << 20, trusted_uid=0, silence_ms=0):
        name = None if path is None else os.fsencode(path)
        options = _Options(ctypes.sizeof(_Options), name, arena_bytes, trusted_uid, silence_ms)
        self._attachment = _Attachment(_load(), options)
        self._library, self._pointer = self._attachment.library, self._attachment.pointer
        self._lock, self._open, self._tokens = threading.Lock(), {}, 0

    @property
    def engines(self):
        """How many engines the daemon has."""
        return self._library.sidecore_engines(self._pointer)

    def kernel(self, name):
        """The number of a kernel: calls with it look up no name."""
        number = self._library.sidecore_kernel(self._pointer, name.encode())
        if number < 0:
            raise LookupError(f"the daemon has no kernel {name}")
        return number

    def buffer(self, contents):
        """A buffer of that many bytes, or with a copy of an object's (bytes, array, a contiguous NumPy array)."""
        if isinstance(contents, int):
            # As a length of C, which has no sign, it would reach over all memory.
            if contents < 0:
                raise ValueError("a buffer has no length below 0")
            return Buffer(self._attachment, contents)
        source = memoryview(contents)
        source = source.cast("B") if source.nbytes else memoryview(b"")
        buffer = Buffer(self._attachment, source.nbytes)
        memoryview(buffer.view()).cast("B")[:] = source
        return buffer

    def call(self, kernel, inputs=(), outputs=(), words=(), engine=None):
        """Calls a kernel, by name or number, and waits. Inputs are buffers, or objects whose bytes are copied into
        one; outputs are buffers. `engine` is one of them by its number from 0."""
        kernel, inputs, outputs = self._named(kernel), self._buffers(inputs), list(outputs)
        if len(inputs) + len(outputs) > RANGES or len(words) > WORDS:
            raise ValueError(f"a call has {RANGES} buffers and {WORDS} words at most")
        request = _Request()
        request.words[: len(words)] = words
        request.input_count, request.output_count = len(inputs), len(outputs)
        for place, buffer in enumerate(inputs):
            request.inputs[place] = ctypes.pointer(buffer._raw)
        for place, buffer in enumerate(outputs):
            request.outputs[place] = ctypes.pointer(buffer._raw)
        if engine is None:
            status = self._library.sidecore_call(self._pointer, kernel, ctypes.byref(request))
        else:
            status = self._library.sidecore_call_on(self._pointer, engine, kernel, ctypes.byref(request))
        self._check(status, request.text)
        return Answer(request.reply)

    def submit(self, kernel, inputs=(), outputs=(), words=()):
        """Hands a job over and returns its token. BlockingIOError where 1,024 are open."""
        kernel, inputs, outputs = self._named(kernel), self._buffers(inputs), list(outputs)
        buffers = inputs + outputs
        if len(buffers) > SEGMENTS or len(words) > WORDS:
            raise ValueError(f"a job has {SEGMENTS} buffers and {WORDS} words at most")
        job, number = _Job(), ctypes.c_uint64()
        job.kernel, job.input_count, job.output_count = kernel, len(inputs), len(outputs)
        job.words[: len(words)] = words
        for place, buffer in enumerate(buffers):
            job.segments[place] = _Segment(ctypes.pointer(buffer._raw), 0, len(buffer))
        with self._lock:
            token = job.token = self._tokens
            self._tokens += 1
            status = self._library.sidecore_submit(self._pointer, ctypes.byref(job), ctypes.byref(number))
            self._check(status, b"")
            # Its buffers live until its outcome was taken.
            self._open[token] = (number.value, buffers)
        return token

    def wait(self, timeout=None):
        """The answer of a job that has ended, waiting for one for `timeout` seconds at most; None where no job is
        open, or none has ended. Raises as `call`, with the token as the exception's `token`."""
        outcome = _Outcome()
        milliseconds = -1 if timeout is None else min(int(timeout * 1000), 2**31 - 1)
        found = self._library.sidecore_wait(self._pointer, ctypes.byref(outcome), milliseconds)
        if found != 1:
            return None
        with self._lock:
            self._open.pop(outcome.token, None)
        try:
            self._check(outcome.status, outcome.text)
        except Exception as error:
            error.token = outcome.token
            raise
        return Answer(outcome.reply, outcome.token)

    def completed(self):
        """The answers of all open jobs, as they end."""
        while (answer := self.wait()) is not None:
            yield answer

    def cancel(self, token):
        """Takes a job back: True where it was not begun. `wait` then raises InterruptedError for it."""
        with self._lock:
            # Another thread may have its answer by now.
            number, _ = self._open.get(token, (None, None))
            return number is not None and self._library.sidecore_cancel(self._pointer, number) == 1

    def fileno(self):
        """For selectors and asyncio: readable from when a job ends until `wait(0)` returns None."""
        descriptor = self._library.sidecore_descriptor(self._pointer)
        if descriptor < 0:
            raise OSError(-descriptor, os.strerror(-descriptor))
        return descriptor

    def _named(self, kernel):
        return kernel if isinstance(kernel, int) else self.kernel(kernel)

    def _buffers(self, inputs):
        return [item if isinstance(item, Buffer) else self.buffer(item) for item in inputs]

    @staticmethod
    def _check(status, text):
        if status >= 0:
            return
        if status in (-errno.ECONNRESET, -errno.ENOMEM):
            raise Lost(-status, "the daemon is gone; its calls are the caller's to do")
        if status == -errno.EIO:
            raise Failed(text.decode(errors="replace"))
        if status == -errno.EINVAL:
            raise ValueError("no such kernel, or a buffer of another client")
        raise OSError(-status, os.strerror(-status))
