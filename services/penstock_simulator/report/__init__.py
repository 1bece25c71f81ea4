"""
What people read of simulations: figures, tables, plots and a page.

In reading order:

* ``policy_comparison``: One trace under several policies, in figures and rows.
* ``page``: The page of a comparison, and the folder around it.
* ``picture``: Pictures and their colours, without matplotlib.
* ``plots``: The part that loads matplotlib.
* ``device_timeline``: Devices over time; the chart for terminals.
* ``intervals``: Intervals of the difference between two schedules.
"""
