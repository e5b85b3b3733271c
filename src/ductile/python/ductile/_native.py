"""The extension that needs no torch."""

import json
import os
import sys

try:
    from ductile import _base as base
except ImportError as error:
    raise ImportError(f"{sys.executable} cannot load Ductile's extension _base ({error}); it is built for one Python: "
                      "build it for this one (-DDUCTILE_PYTHON=...), or use that one") from None

__all__ = ["base", "named_or_tree", "parsed", "path_of", "text_of"]


def text_of(value, what):
    """A value of Python as JSON, for the extension."""
    from ductile._errors import Error

    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Error("invalid_argument", f"{what}: {error}; numbers, texts, true and false, None, lists and dictionaries of "
                    "them are possible") from None


def parsed(text):
    return json.loads(text)


def path_of(value):
    """The name of a file or folder; None stays None."""
    return None if value is None else os.fspath(value)


def named_or_tree(value, what):
    """An argument that is the name of a file (or of something that is built in), or what such a file would say."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return text_of(value, what)
