"""Where the elements of a list or object of JSON stand in its text, without a look at what they are.

A long text can so be cut into pieces that a JSON reader then reads one by one. The loop counts brackets and steps over
strings; whether the pieces are JSON is for the reader to say.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import compiled

QUOTE, COMMA, BACKSLASH = 34, 44, 92
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125

# What ``find_elements`` returns in place of a number of elements.
DAMAGED, TOO_MANY = -1, -2


@compiled
def find_elements(text: NDArray[np.uint8], start: int, places: NDArray[np.int64]) -> tuple[int, int]:
    """Find the elements of the list or object that opens at ``text[start]``; returns their number, and where it ends.

    ``places`` gets a row for each element: where it starts, where it ends, and how many commas are inside it. An empty
    list has one element, of blanks. ``DAMAGED``: the text ends before the bracket closes, or another one closes it.
    ``TOO_MANY``: there are more elements than rows in ``places``. Both come with the place where that was found.
    """
    closes = CLOSE_LIST if text[start] == OPEN_LIST else CLOSE_OBJECT
    n, depth, commas, first = 0, 1, 0, start + 1
    in_string = False
    i = start + 1
    while i < len(text):
        byte = text[i]
        if in_string:
            if byte == BACKSLASH:
                i += 1
            elif byte == QUOTE:
                in_string = False
        elif byte == QUOTE:
            in_string = True
        elif byte == OPEN_LIST or byte == OPEN_OBJECT:
            depth += 1
        elif byte == CLOSE_LIST or byte == CLOSE_OBJECT:
            depth -= 1
        elif byte == COMMA and depth > 1:
            commas += 1
        if not in_string and (depth == 0 or (depth == 1 and byte == COMMA)):
            if n == len(places):
                return TOO_MANY, i
            places[n, 0], places[n, 1], places[n, 2] = first, i, commas
            n, commas, first = n + 1, 0, i + 1
            if depth == 0:
                return (n if byte == closes else DAMAGED), i + 1
        i += 1
    return DAMAGED, len(text)
