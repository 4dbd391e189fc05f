"""Finds the elements of a JSON list or object in its text, without parsing them.

So a long text can be cut into pieces that a JSON reader reads one by one. The loop counts brackets and skips strings;
whether the pieces are valid JSON is up to the reader.
"""

import numpy as np

from tierank.kernels import OutMatrix, Vector, compiled

TAB, LINE_FEED, RETURN, SPACE, QUOTE, COMMA, BACKSLASH = 9, 10, 13, 32, 34, 44, 92
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125

# What ``find_elements`` may return instead of a number of elements.
DAMAGED, TOO_MANY = -1, -2


@compiled
def find_elements(text: Vector[np.uint8], start: int, places: OutMatrix[np.int64]) -> tuple[int, int]:
    """Find the elements of the list or object that opens at ``text[start]``; returns their number, and where it ends.

    ``places`` gets a row for each element: where it starts, where it ends, and the number of commas inside it. Instead
    of a number, it returns ``DAMAGED`` if there is nothing before or after a comma, if the text ends before the bracket
    closes, or if a bracket of another kind closes it, and ``TOO_MANY`` if there are more elements than rows in
    ``places``. Both come with the place where that was found.
    """
    closes = CLOSE_LIST if text[start] == OPEN_LIST else CLOSE_OBJECT
    n, depth, commas, first = 0, 1, 0, start + 1
    in_string, is_blank = False, True
    i = start + 1
    while i < len(text):
        byte = text[i]
        ends = not in_string and depth == 1 and (byte == COMMA or byte == CLOSE_LIST or byte == CLOSE_OBJECT)
        is_blank = is_blank and (ends or byte == SPACE or byte == TAB or byte == LINE_FEED or byte == RETURN)
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
        if ends:
            is_empty = is_blank and n == 0 and depth == 0
            if (is_blank and not is_empty) or (depth == 0 and byte != closes):
                return DAMAGED, i
            if is_empty:
                return 0, i + 1
            if n == len(places):
                return TOO_MANY, i
            places[n, 0], places[n, 1], places[n, 2] = first, i, commas
            n, commas, first, is_blank = n + 1, 0, i + 1, True
            if depth == 0:
                return n, i + 1
        i += 1
    return DAMAGED, len(text)
