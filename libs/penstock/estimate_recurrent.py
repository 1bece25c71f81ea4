"""
What oneDNN's recurrent kernel takes beside its results: torch runs every LSTM layer on the CPU by it.

The kernel is one operation to torch. Its workspace, which it keeps for the backward pass, has no bytes in torch's own
description of the operation, and its scratchpad is none of its results: tensors without content show neither. Both
follow from the shapes. Pure: no torch here.

References
----------
oneDNN, ``src/cpu/rnn/rnn_utils.hpp`` (``get_good_ld``, ``set_workspace_sizes``), as PyTorch 2.13 carries it.
"""

from __future__ import annotations

from typing import Final

FLOAT_BYTES: Final = 4
_LINE: Final = 16  # floats in a cache line
_ALIASED: Final = 256  # rows of such a length would fall on the same lines of the cache
_GATES: Final = 4
_PAGE_BYTES: Final = 4096  # each array begins on a page of its own


def row_floats(floats: int) -> int:
    """
    Return how long oneDNN makes a row of so many floats.

    Examples
    --------
    >>> row_floats(60), row_floats(256)
    (64, 272)
    """
    whole = -(-floats // _LINE) * _LINE
    return whole + _LINE if whole % _ALIASED == 0 else whole


def workspace_bytes(steps: int, rows: int, inputs: int, hidden: int) -> int:
    """
    Return what one direction of one LSTM layer keeps from its forward to its backward pass.

    That is states, and room for their gradients, at the layer's input and output (as wide as the wider of the two) and
    of the cells, one step more than there are; and of each step its gates and one row more.

    Parameters
    ----------
    steps, rows, inputs, hidden : int
        The lengths of sequence, batch, input and state.

    Examples
    --------
    >>> workspace_bytes(50, 32, 64, 256)
    25735168
    """
    states = 3 * [2 * row_floats(max(inputs, hidden))] + 2 * [2 * hidden]
    of_steps = [row_floats(_GATES * hidden), row_floats(hidden)]
    floats = [rows * (steps + 1) * each for each in states] + [rows * steps * each for each in of_steps]
    return sum(-(-FLOAT_BYTES * each // _PAGE_BYTES) * _PAGE_BYTES for each in floats)


def scratch_bytes(steps: int, rows: int, inputs: int, hidden: int, *, backward: bool) -> int:
    """
    Return what a pass takes and gives back: the gates of all steps, and the weights in oneDNN's order.

    The backward pass needs the weights the other way round as well.
    """
    gates = row_floats(_GATES * hidden)
    floats = (steps * rows + inputs + hidden) * gates
    if backward:
        floats += _GATES * hidden * sum(row for row in map(row_floats, (inputs, hidden)) if row not in (inputs, hidden))
    return FLOAT_BYTES * floats
