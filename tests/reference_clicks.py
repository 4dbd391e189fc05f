"""Click models in plain Python, from their papers: no arrays, no tricks.

A session is a list of (item, position, clicked). Chances of clicks come from the chance of a whole list of clicks,
summed over everything that users may have done.
"""

import itertools
import math
from collections import defaultdict


def first_rate(sessions):
    """The click-through rate of first documents: the prior of attractiveness."""
    return sum(session[0][2] for session in sessions) / len(sessions)


def ratio(part, whole, smoothing, prior):
    return (part + smoothing * prior) / (whole + smoothing) if whole + smoothing > 0 else prior


def fit_ctr(sessions, smoothing):
    clicks, shown = defaultdict(int), defaultdict(int)
    for session in sessions:
        for _, position, clicked in session:
            shown[position] += 1
            clicks[position] += clicked
    return {r: ratio(clicks[r], shown[r], smoothing, 0.5) for r in shown}


def fit_products(sessions, cell_of, first_cell, smoothing, tolerance, max_iterations):
    """PBM and UBM: EM of Dupret and Piwowarski, one document at a time."""
    rows = [(item, cell, clicked) for session in sessions for item, cell, clicked in cell_of(session)]
    prior = first_rate(sessions)
    a = dict.fromkeys((row[0] for row in rows), 0.5)
    g = dict.fromkeys((row[1] for row in rows), 0.5) | {first_cell: 1.0}
    for iteration in range(1, max_iterations + 1):
        attractive, examined = defaultdict(list), defaultdict(list)
        for item, cell, clicked in rows:
            if clicked:
                attractive[item].append(1.0)
                examined[cell].append(1.0)
            else:
                nothing = 1 - a[item] * g[cell]
                attractive[item].append(a[item] * (1 - g[cell]) / nothing)
                examined[cell].append(g[cell] * (1 - a[item]) / nothing)
        new_a = {i: ratio(sum(values), len(values), smoothing, prior) for i, values in attractive.items()}
        new_g = {c: ratio(sum(values), len(values), smoothing, 0.5) for c, values in examined.items()}
        new_g[first_cell] = 1.0
        change = max([abs(new_a[i] - a[i]) for i in a] + [abs(new_g[c] - g[c]) for c in g])
        a, g = new_a, new_g
        if change <= tolerance:
            return a, g, iteration
    return a, g, max_iterations


def pbm_cells(session):
    return [(item, position, clicked) for item, position, clicked in session]


def ubm_cells(session):
    """Each document with its position and that of the click above it."""
    rows, previous = [], 0
    for item, position, clicked in session:
        rows.append((item, (position, previous), clicked))
        if clicked:
            previous = position
    return rows


def fit_cascade(sessions, smoothing):
    """Documents down to the first click were examined, one after the other."""
    clicks, examined = defaultdict(int), defaultdict(int)
    for session in sessions:
        for item, _, clicked in session:
            examined[item] += 1
            clicks[item] += clicked
            if clicked:
                break
    items = {item for session in sessions for item, _, _ in session}
    return {i: ratio(clicks[i], examined[i], smoothing, first_rate(sessions)) for i in items}


def fit_to_last_click(sessions, smoothing):
    """DCM and SDBN: documents down to the last click were examined, all of a list without clicks.

    Attractiveness, satisfaction by item, chance to go on by position (of clicks with a document below them).
    """
    clicks, examined, last_clicks = defaultdict(int), defaultdict(int), defaultdict(int)
    clicks_at, went_on_at = defaultdict(int), defaultdict(int)
    for session in sessions:
        clicked_ranks = [rank for rank, row in enumerate(session) if row[2]]
        last = clicked_ranks[-1] if clicked_ranks else len(session) - 1
        for rank, (item, position, clicked) in enumerate(session[: last + 1]):
            examined[item] += 1
            if clicked:
                clicks[item] += 1
                last_clicks[item] += rank == last
                if rank < len(session) - 1:
                    clicks_at[position] += 1
                    went_on_at[position] += rank < last
    prior = first_rate(sessions)
    items = {item for session in sessions for item, _, _ in session}
    positions = {position for session in sessions for _, position, _ in session}
    return (
        {i: ratio(clicks[i], examined[i], smoothing, prior) for i in items},
        {i: ratio(last_clicks[i], clicks[i], smoothing, 0.5) for i in items},
        {r: ratio(went_on_at[r], clicks_at[r], smoothing, 0.5) for r in positions},
    )


def dbn_stories(session, a, s, g):
    """Everything that a user may have done: its chance, and what was tried and happened of each kind.

    Events are ("attraction", item), ("satisfaction", item) and ("continuation",), with 0 or 1. What is decided at the
    last document, after which nothing can be seen, is left out.
    """

    def walk(rank, is_examining):
        if rank == len(session):
            return [(1.0, [])]
        item, _, clicked = session[rank]
        if not is_examining:
            return [] if clicked else walk(rank + 1, False)
        chance = a[item] if clicked else 1 - a[item]
        seen = [(("attraction", item), clicked)]
        if rank == len(session) - 1:
            return [(chance, seen)]
        stories = []
        endings = [(s[item], [(("satisfaction", item), 1)], False)] if clicked else []
        left, unsatisfied = (1 - s[item], [(("satisfaction", item), 0)]) if clicked else (1.0, [])
        endings.append((left * g, [*unsatisfied, (("continuation",), 1)], True))
        endings.append((left * (1 - g), [*unsatisfied, (("continuation",), 0)], False))
        for share, events, goes_on in endings:
            for rest, later in walk(rank + 1, goes_on):
                stories.append((chance * share * rest, seen + events + later))
        return stories

    return walk(0, True)


def fit_dbn(sessions, smoothing, tolerance, max_iterations):
    """EM of Chapelle and Zhang by enumeration."""
    prior = first_rate(sessions)
    items = sorted({item for session in sessions for item, _, _ in session})
    a, s, g = dict.fromkeys(items, 0.5), dict.fromkeys(items, 0.5), 0.5
    for iteration in range(1, max_iterations + 1):
        tried, happened = defaultdict(float), defaultdict(float)
        for session in sessions:
            stories = dbn_stories(session, a, s, g)
            total = sum(chance for chance, _ in stories)
            for chance, events in stories:
                for event, outcome in events:
                    tried[event] += chance / total
                    happened[event] += outcome * chance / total

        def update(event, default, old, tried=tried, happened=happened):
            whole = tried[event] + smoothing
            return (happened[event] + smoothing * default) / whole if whole > 0 else old

        new_a = {i: update(("attraction", i), prior, a[i]) for i in items}
        new_s = {i: update(("satisfaction", i), 0.5, s[i]) for i in items}
        new_g = update(("continuation",), 0.5, g)
        changes = [abs(new_a[i] - a[i]) for i in items] + [abs(new_s[i] - s[i]) for i in items] + [abs(new_g - g)]
        a, s, g = new_a, new_s, new_g
        if max(changes) <= tolerance:
            return a, s, g, iteration
    return a, s, g, max_iterations


def chain_chance(clicks, attraction, after_click, after_skip):
    """The chance of these clicks, for users who go on after a click or without one with the given chances."""

    def walk(rank, is_examining):
        if rank == len(clicks):
            return 1.0
        if not is_examining:
            return 0.0 if clicks[rank] else walk(rank + 1, False)
        chance = attraction[rank] if clicks[rank] else 1 - attraction[rank]
        on = after_click[rank] if clicks[rank] else after_skip
        return chance * (on * walk(rank + 1, True) + (1 - on) * walk(rank + 1, False))

    return walk(0, True)


def product_chance(clicks, attraction, examination):
    """The chance of these clicks; ``examination(rank, previous)``, previous the rank of the click above, or None."""
    chance, previous = 1.0, None
    for rank, clicked in enumerate(clicks):
        one = attraction[rank] * examination(rank, previous)
        chance *= one if clicked else 1 - one
        if clicked:
            previous = rank
    return chance


def marginals(n, chance_of):
    """P(C_r) for each rank, by summing over all lists of clicks."""
    everything = list(itertools.product([0, 1], repeat=n))
    return [sum(chance_of(clicks) for clicks in everything if clicks[rank]) for rank in range(n)]


def conditionals(clicks, chance_of):
    """P(C_r | C_1 .. C_{r-1}) for each rank, given these clicks."""
    n, chances = len(clicks), []
    for rank in range(n):
        same = [list(clicks[:rank]) + list(rest) for rest in itertools.product([0, 1], repeat=n - rank)]
        total = sum(chance_of(one) for one in same)
        chances.append(sum(chance_of(one) for one in same if one[rank]) / total if total > 0 else math.nan)
    return chances
