"""
The tuner: turns a sweep into trials, gives each its devices, and says which was best.

In reading order:

* ``__main__``: ``python -m penstock_tuner``.
* ``machine``: Settings, state, apply, decide.
* ``sweep_state``: One sweep.
* ``trials``: How many devices each trial gets.
* ``trial_speed``: What trials have shown.
* ``runner``: Submissions until they are accepted.
"""
