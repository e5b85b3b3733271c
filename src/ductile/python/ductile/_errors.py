"""Errors with a kind, a text that names the thing and the remedy, and Python's own with their frames."""

import os
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))


class Error(Exception):
    """What Ductile refuses, or what is missing. `code` is one of its kinds of error:
    invalid_argument, not_found, conflict, unavailable, data_loss, peer_lost, internal."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


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
    return code, text
