"""An epoch of Adam on a small network, for steps so small that libraries spend more time on calls than on sums.

Weights are flat: for each layer a row of outputs per input, and then the biases. The recurrent network of urBoost has
the weights of the state and of the document in the score before its layers, and those from state to state behind them;
its last layer is that from document to state. Other arrays are flat too, with a row of values for each document.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels.compiling import OutMatrix, Vector, compiled, inner

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

RELU, ELU = 0, 1
URANK, SQUARES, TIERS = 0, 1, 2

_BETA1, _BETA2, _EPSILON = np.float32(0.9), np.float32(0.999), np.float32(1e-8)
_ONE, _NOTHING = np.float32(1), np.float32(0)

# Products may be fused with sums. Where sums may be reordered too, the compiler fixes an order for the machine.
_fused = partial(inner, fastmath={"contract"})
_reordered = partial(inner, fastmath={"contract", "nsz", "reassoc"})


class LearnedQueries(NamedTuple):
    """What a network learns from; all flat. ``targets`` are what scores are fitted to for ``SQUARES``, and else gains.

    The gains are divided by |R| - 1.
    """

    offsets: Ints
    features: Floats
    tiers: Ints
    targets: Doubles
    weights: Doubles  # of queries


class StepSettings(NamedTuple):
    """``sizes`` are the inputs of the network and the outputs of each layer; activation and loss are numbered above."""

    sizes: Ints
    activation: int
    loss: int
    per_step: int
    weight_decay: float
    clip_norm: float


class AdamState(NamedTuple):
    """Weights, and the moments of Adam after ``n_taken`` steps.

    ``n_taken`` has a second number for the weights from state to state, which take no part if all queries of a step
    have two tiers.
    """

    n_taken: Ints
    weights: Floats
    first: Floats
    second: Floats


class StepArrays(NamedTuple):
    """Working space, and the sum of the losses.

    Row l + 1 of ``values`` has the outputs of layer l, and row 0 the inputs; ``deltas`` are the derivatives with
    respect to them. The last four are for ``TIERS``: row t of ``hidden`` gets h~_t of each document, row t of
    ``of_steps`` first its score f_t, then the derivative with respect to it, and row t of ``states`` gets h_t.
    """

    total: Doubles
    gradient: Floats
    values: OutMatrix[np.float32]
    deltas: OutMatrix[np.float32]
    of_tiers: OutMatrix[np.float64]
    hidden: OutMatrix[np.float32]
    of_steps: OutMatrix[np.float32]
    states: OutMatrix[np.float32]
    work: OutMatrix[np.float32]


@compiled
def train_mlp(
    order: Vector[np.int64],
    rates: Vector[np.float64],
    queries: LearnedQueries,
    settings: StepSettings,
    adam: AdamState,
    room: StepArrays,
) -> int:
    """Take a step for every ``per_step`` queries of the order, with the mean of their losses times their weights.

    The sum of the losses is added to ``room.total``. Returns -1, or the first query whose loss is not finite: the step
    with it is not taken.
    """
    offsets, sizes, per_step, loss = queries.offsets, settings.sizes, settings.per_step, settings.loss
    weights, gradient, values, deltas = adam.weights, room.gradient, room.values, room.deltas
    n_layers = len(sizes) - 1
    end = len(weights) - (sizes[n_layers] ** 2 if loss == TIERS else 0)  # of the layers
    head = end  # where they begin
    for layer in range(n_layers):
        head -= (sizes[layer] + 1) * sizes[layer + 1]
    for start in range(0, len(order), per_step):
        chosen = order[start : start + per_step]
        n = _gather(chosen, offsets, queries.features, sizes[0], values[0])
        _forward(n, sizes, weights[head:end], settings.activation, values)
        gradient[:] = _NOTHING
        for layer in range(n_layers):
            deltas[layer][: n * sizes[layer]] = _NOTHING
        row, losses, has_states = 0, 0.0, False
        for query in chosen:
            first, last = offsets[query], offsets[query + 1]
            part = slice(row * sizes[n_layers], (row + last - first) * sizes[n_layers])
            outputs, own = values[n_layers][part], deltas[n_layers][part]
            tiers, targets = queries.tiers[first:last], queries.targets[first:last]
            factor = queries.weights[query] / len(chosen)
            if loss == SQUARES:
                found = _find_squares(outputs, targets, factor, own)
            elif loss == URANK:
                found = _find_urank(outputs, tiers, targets, factor, room.of_tiers, own)
            else:
                embedded, of_embedded = values[n_layers - 1][part], deltas[n_layers - 1][part]
                found = _find_tiers(outputs, embedded, tiers, targets, factor, weights, head, room, own, of_embedded)
                has_states = has_states or _last(tiers) > 1
            if not math.isfinite(found):
                return query
            losses += found
            row += last - first
        room.total[0] += losses
        _back(n, sizes, weights[head:end], settings.activation, values, deltas, gradient[head:end])
        _clip(gradient, settings.clip_norm)
        _move(adam, 0, slice(0, end), gradient, rates[start // per_step], settings.weight_decay)
        if has_states:
            _move(adam, 1, slice(end, len(weights)), gradient, rates[start // per_step], settings.weight_decay)
    return -1


@inner
def _forward(n: int, sizes: Ints, weights: Floats, activation: int, values: Floats) -> None:
    """The values of all layers for n documents."""
    n_layers, at = len(sizes) - 1, 0
    for layer in range(n_layers):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        _apply(values[layer], n, weights[at : at + (n_in + 1) * n_out], n_in, n_out, values[layer + 1])
        if layer < n_layers - 1:
            _activate(values[layer + 1][: n * n_out], activation)
        at += (n_in + 1) * n_out


@inner
def _back(
    n: int, sizes: Ints, weights: Floats, activation: int, values: Floats, deltas: Floats, gradient: Floats
) -> None:
    """The gradient of the layers, from the derivatives with respect to the outputs of the last one."""
    at = len(weights)
    for layer in range(len(sizes) - 2, -1, -1):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        at -= (n_in + 1) * n_out
        part = slice(at, at + (n_in + 1) * n_out)
        _find_gradient(values[layer], deltas[layer + 1], n, n_in, n_out, gradient[part])
        if layer:
            _add_back(deltas[layer + 1], n, weights[part], n_in, n_out, deltas[layer])
            _differentiate(values[layer][: n * n_in], deltas[layer], activation)


@inner
def _gather(queries: Ints, offsets: Ints, features: Floats, n_in: int, rows: Floats) -> int:
    """Copy the features of the queries, one after the other; returns the number of documents."""
    at = 0
    for query in queries:
        for i in range(offsets[query] * n_in, offsets[query + 1] * n_in):
            rows[at] = features[i]
            at += 1
    return at // n_in


@_fused
def _apply(inputs: Floats, n: int, weights: Floats, n_in: int, n_out: int, outputs: Floats) -> None:
    """The inputs times W, plus b."""
    for i in range(n):
        row, own = outputs[i * n_out : (i + 1) * n_out], inputs[i * n_in : (i + 1) * n_in]
        for j in range(n_out):
            row[j] = weights[n_in * n_out + j]
        _add_rows(own, 1, n_in, weights, n_out, row)


@_fused
def _find_gradient(inputs: Floats, deltas: Floats, n: int, n_in: int, n_out: int, gradient: Floats) -> None:
    """Add the gradient of the weights, inputs' times deltas, and of the biases, the sums of the deltas."""
    for k in range(n_in):
        _add_rows(inputs[k:], n_in, n, deltas, n_out, gradient[k * n_out : (k + 1) * n_out])
    biases = gradient[n_in * n_out :]
    for i in range(n):
        for j in range(n_out):
            biases[j] += deltas[i * n_out + j]


@_fused
def _add_rows(factors: Floats, stride: int, n: int, rows: Floats, width: int, sums: Floats) -> None:
    """Add n rows to the sums, each times its factor; ``stride``: the distance between factors."""
    k = 0
    while k + 4 <= n:  # four at a time: the sums are read and written less often
        a, b = factors[k * stride], factors[(k + 1) * stride]
        c, d = factors[(k + 2) * stride], factors[(k + 3) * stride]
        row_a, row_b = rows[k * width : (k + 1) * width], rows[(k + 1) * width : (k + 2) * width]
        row_c, row_d = rows[(k + 2) * width : (k + 3) * width], rows[(k + 3) * width : (k + 4) * width]
        for j in range(width):
            sums[j] += a * row_a[j] + b * row_b[j] + c * row_c[j] + d * row_d[j]
        k += 4
    while k < n:
        a, row_a = factors[k * stride], rows[k * width : (k + 1) * width]
        for j in range(width):
            sums[j] += a * row_a[j]
        k += 1


@_reordered
def _add_back(deltas: Floats, n: int, weights: Floats, n_in: int, n_out: int, backwards: Floats) -> None:
    """Add the deltas times W': the derivatives with respect to the inputs of a layer."""
    for i in range(n):
        own = deltas[i * n_out : (i + 1) * n_out]
        for k in range(n_in):
            row, total = weights[k * n_out : (k + 1) * n_out], _NOTHING
            for j in range(n_out):
                total += own[j] * row[j]
            backwards[i * n_in + k] += total


@_fused
def _activate(values: Floats, activation: int) -> None:
    if activation == RELU:
        for i in range(len(values)):
            values[i] = max(values[i], _NOTHING)
    else:
        for i in range(len(values)):
            if values[i] < 0:
                values[i] = np.expm1(values[i])


@_fused
def _differentiate(values: Floats, deltas: Floats, activation: int) -> None:
    """Multiply by the derivative of the activation, which follows from its values: e^x is the value + 1."""
    for i in range(len(values)):
        if values[i] <= 0:
            deltas[i] *= _NOTHING if activation == RELU else values[i] + _ONE


@inner
def _find_squares(scores: Floats, targets: Doubles, factor: float, deltas: Floats) -> float:
    """The mean of (score - target)^2, and its derivatives times a factor."""
    total, n = 0.0, len(scores)
    for i in range(n):
        error = scores[i] - targets[i]
        deltas[i] = np.float32(2.0 * error / n * factor)
        total += error * error
    return total / n


@inner
def _find_urank(scores: Floats, tiers: Ints, gains: Doubles, factor: float, of_tiers: Doubles, deltas: Floats) -> float:
    """The uRank loss of a query, and its derivatives times a factor: the formulas of ``tierank.losses.batch``."""
    n_tiers = _last(tiers) + 1
    for score in scores:
        if not math.isfinite(score):
            return np.nan
    logs, below, pulls = of_tiers[0], of_tiers[1], of_tiers[2]
    _log_sums(scores, tiers, n_tiers, logs, below)
    rest = -np.inf
    for tier in range(n_tiers - 1, -1, -1):
        below[tier], pulls[tier] = rest, 0.0
        rest = _log_add(rest, logs[tier])
    total = 0.0
    for i in range(len(scores)):
        tier = tiers[i]
        if tier < n_tiers - 1:
            margin = below[tier] - scores[i]
            total += gains[i] * _softplus(margin)
            pulls[tier] += gains[i] * _sigmoid(margin)
    above = -np.inf  # ln of the sum of pulls / k(below) over the tiers above
    for tier in range(n_tiers):
        logs[tier] = above
        if pulls[tier] > 0:
            above = _log_add(above, math.log(pulls[tier]) - below[tier])
    for i in range(len(scores)):
        tier = tiers[i]
        delta = math.exp(logs[tier] + scores[i]) if tier else 0.0
        if tier < n_tiers - 1:
            delta -= gains[i] * _sigmoid(below[tier] - scores[i])
        deltas[i] = np.float32(delta * factor)
    return total


@inner
def _find_tiers(
    inputs: Floats,
    embedded: Floats,
    tiers: Ints,
    gains: Doubles,
    factor: float,
    weights: Floats,
    head: int,
    room: StepArrays,
    deltas: Floats,
    of_embedded: Floats,
) -> float:
    """The loss of a query that a ``TierRNN`` selects tier by tier, and its derivatives times a factor.

    ``inputs`` are U x~ + b, and ``embedded`` x~.
    """
    hidden, of_steps, states, work, gradient = room.hidden, room.of_steps, room.states, room.work, room.gradient
    width, n_steps = len(inputs) // len(tiers), _last(tiers)
    by_state, by_document, between = weights[:width], weights[width:head], weights[len(weights) - width * width :]
    recurrent, coming, shares, summed = work[0], work[1], work[2], work[3]
    total = 0.0
    for step in range(n_steps):
        recurrent[:] = _NOTHING
        if step:
            _add_rows(states[step - 1], 1, width, between, width, recurrent)
        _score_step(inputs, embedded, tiers, step, by_state, by_document, room)
        total += _find_step(of_steps[step], tiers, gains, step, factor)
        _pool(hidden[step], tiers, step, states[step], shares)
    deltas[:] = _NOTHING
    coming[:] = _NOTHING
    of_between = gradient[len(weights) - width * width :]
    for step in range(n_steps - 1, -1, -1):
        _pool(hidden[step], tiers, step, states[step], shares)
        for j in range(width):
            shares[j] = coming[j] / shares[j]
        summed[:] = _NOTHING
        for i in range(len(tiers)):
            if tiers[i] >= step:
                part, delta = slice(i * width, (i + 1) * width), of_steps[step, i]
                _add_scaled(delta, hidden[step][part], gradient[:width])
                if head > width:  # the score depends on the document too
                    _add_scaled(delta, embedded[part], gradient[width:head])
                    _add_scaled(delta, by_document, of_embedded[part])
                _step_back(delta, by_state, hidden[step][part], states[step], tiers[i] == step, work, deltas[part])
        if step:
            for k in range(width):
                _add_scaled(states[step - 1, k], summed, of_between[k * width : (k + 1) * width])
            coming[:] = _NOTHING
            _add_back(summed, 1, between, width, width, coming)
    return total


@_reordered
def _score_step(
    inputs: Floats, embedded: Floats, tiers: Ints, step: int, by_state: Floats, by_document: Floats, room: StepArrays
) -> None:
    """The state h~ and the score of each document that is left."""
    width, recurrent, hidden = len(by_state), room.work[0], room.hidden[step]
    for i in range(len(tiers)):
        if tiers[i] < step:
            continue
        part = slice(i * width, (i + 1) * width)
        own, row, score = hidden[part], inputs[part], _NOTHING
        for j in range(width):
            own[j] = np.tanh(row[j] + recurrent[j])
        for j in range(width):
            score += own[j] * by_state[j]
        row = embedded[part]
        for j in range(len(by_document)):
            score += row[j] * by_document[j]
        room.of_steps[step, i] = score


@inner
def _find_step(scores: Floats, tiers: Ints, gains: Doubles, step: int, factor: float) -> float:
    """The loss of selecting a tier from itself and those below it; the scores become its derivatives times a factor."""
    top, rest = -np.inf, 0.0
    for i in range(len(tiers)):
        if tiers[i] > step:
            top = max(top, scores[i])
    for i in range(len(tiers)):
        if tiers[i] > step:
            rest += math.exp(scores[i] - top)
    below = top + math.log(rest)
    total, pulls = 0.0, 0.0
    for i in range(len(tiers)):
        if tiers[i] == step:
            margin = below - scores[i]
            total += gains[i] * _softplus(margin)
            pull = gains[i] * _sigmoid(margin)
            pulls += pull
            scores[i] = np.float32(-pull * factor)
    for i in range(len(tiers)):
        if tiers[i] > step:
            scores[i] = np.float32(math.exp(scores[i] - below) * pulls * factor)
    return total


@_fused
def _pool(hidden: Floats, tiers: Ints, step: int, state: Floats, shares: Floats) -> None:
    """The maximum of each number over the documents of the tier, and how many of them have it."""
    width = len(state)
    for j in range(width):
        state[j], shares[j] = -_ONE, _NOTHING  # tanh is not lower
    for i in range(len(tiers)):
        if tiers[i] == step:
            own = hidden[i * width : (i + 1) * width]
            for j in range(width):
                state[j] = max(state[j], own[j])
    for i in range(len(tiers)):
        if tiers[i] == step:
            own = hidden[i * width : (i + 1) * width]
            for j in range(width):
                shares[j] += _ONE if own[j] == state[j] else _NOTHING


@_fused
def _step_back(
    delta: np.float32, by_state: Floats, hidden: Floats, state: Floats, is_selected: bool, work: Floats, deltas: Floats
) -> None:
    """Add the derivatives with respect to what tanh was applied to. Documents that share a maximum share its pull."""
    shares, summed = work[2], work[3]
    for j in range(len(by_state)):
        change = delta * by_state[j]
        if is_selected and hidden[j] == state[j]:
            change += shares[j]
        change *= _ONE - hidden[j] * hidden[j]
        deltas[j] += change
        summed[j] += change


@_fused
def _add_scaled(factor: np.float32, values: Floats, sums: Floats) -> None:
    for j in range(len(values)):
        sums[j] += factor * values[j]


@inner
def _last(tiers: Ints) -> int:
    """The number of the lowest tier."""
    last = 0
    for tier in tiers:
        last = max(last, tier)
    return last


@inner
def _softplus(x: float) -> float:
    """ln(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@inner
def _sigmoid(x: float) -> float:
    power = math.exp(-abs(x))
    return (1.0 if x >= 0 else power) / (1.0 + power)


@inner
def _log_sums(scores: Floats, tiers: Ints, n_tiers: int, logs: Doubles, tops: Doubles) -> None:
    """The logarithm of the sum of e^score for each tier; ``tops`` is working space."""
    for tier in range(n_tiers):
        logs[tier], tops[tier] = 0.0, -np.inf
    for i in range(len(scores)):
        tops[tiers[i]] = max(tops[tiers[i]], scores[i])
    for i in range(len(scores)):
        logs[tiers[i]] += math.exp(scores[i] - tops[tiers[i]])
    for tier in range(n_tiers):
        logs[tier] = tops[tier] + math.log(logs[tier])


@inner
def _log_add(a: float, b: float) -> float:
    """ln(e^a + e^b), where at least one of them is finite."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


@_reordered
def _clip(gradient: Floats, limit: float) -> None:
    """Scale the gradient down to the maximum norm."""
    total = 0.0
    for i in range(len(gradient)):
        total += np.float64(gradient[i]) * gradient[i]
    if total > limit * limit:
        factor = np.float32(limit / math.sqrt(total))
        for i in range(len(gradient)):
            gradient[i] *= factor


# Not fused: code that was just compiled and code from the cache fused other products, and gave other bits.
@inner
def _move(adam: AdamState, counter: int, part: slice, gradient: Floats, rate: float, weight_decay: float) -> None:
    """A step of Adam, or of AdamW with ``weight_decay``, for a part of the weights."""
    adam.n_taken[counter] += 1
    step = adam.n_taken[counter]
    weights, first, second, slope = adam.weights[part], adam.first[part], adam.second[part], gradient[part]
    size = np.float32(rate / (1.0 - 0.9**step))
    root = np.float32(1.0 / math.sqrt(1.0 - 0.999**step))
    kept = np.float32(1.0 - rate * weight_decay)
    for i in range(len(weights)):
        first[i] = _BETA1 * first[i] + (_ONE - _BETA1) * slope[i]
        second[i] = _BETA2 * second[i] + (_ONE - _BETA2) * slope[i] * slope[i]
        weights[i] = kept * weights[i] - size * first[i] / (np.sqrt(second[i]) * root + _EPSILON)
