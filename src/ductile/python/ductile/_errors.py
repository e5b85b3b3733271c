"""Errors with a kind, a text that names the thing and the remedy, and Python's own with their frames."""

import os
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))


class Error(Exception):
    """What Ductile refuses, or what is missing. `code` is one of its kinds of error: invalid_argument,
    not_found, conflict, unavailable, deadline, data_loss, peer_lost, internal. An error is of the class
    below that says what to do about it; one of kind internal, which is a fault of Ductile, is of none."""

    def __new__(cls, code, text):
        return super().__new__(_CLASSES.get(code, cls) if cls is Error else cls, code, text)

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return Error, (self.code, str(self))


class DamageError(Error):
    """Stored bytes are truncated, altered or unreadable (data_loss): what they held is lost, unless there
    is another copy."""


class AbsenceError(Error):
    """A named thing does not exist (not_found)."""


class RefusalError(Error):
    """An argument or option is wrong (invalid_argument), or a thing is in a state that forbids this
    (conflict): the same call fails again until something is changed."""


class TryAgainError(Error):
    """Something is busy, full or gone now (unavailable, deadline, peer_lost): the same call may succeed
    later."""


_CLASSES = {"data_loss": DamageError, "not_found": AbsenceError,
            "invalid_argument": RefusalError, "conflict": RefusalError,
            "unavailable": TryAgainError, "deadline": TryAgainError, "peer_lost": TryAgainError}


class of_user:
    """`with of_user(code, where):` around a call of the user's code: what it raises becomes an Error of that
    kind, which says where, with the frames of the user's program."""

    def __init__(self, code, where):
        self.code, self.where = code, where

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            raise Error(self.code, f"{self.where}:\n{told(error)[1]}") from None


def told(error, code="conflict"):
    """(code, text) of an exception. That of the user's program comes with its frames; those of
    Ductile that lie before it say nothing to its author."""
    if isinstance(error, Error):
        return error.code, str(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        file = frames.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and os.path.dirname(os.path.abspath(file)) != _HERE:
            break
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    if isinstance(error, FileNotFoundError) and error.filename and not os.path.isabs(error.filename):
        text += (f"\nThe path is relative, and this process runs in {os.getcwd()}: workers run where the command or the service was "
                 "started that has them. Give an absolute path, or begin it with os.path.dirname(os.path.abspath(__file__))")
    return code, text
