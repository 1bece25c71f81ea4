"""
The tuner: turns a sweep into trials, gives each its devices, and says which was best.

In reading order:

* ``__main__``: ``python -m penstock_tuner``.
* ``machine``: Settings, state, apply, decide.
* ``sweep_state``: One sweep, as the tuner decides on it.
* ``trials``: Trials and their devices.
* ``trial_speed``: The speed that trials have shown.
* ``runner``: The tuner on a bus: submissions until they are accepted.
"""
