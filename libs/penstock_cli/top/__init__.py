"""
What ``penstock top`` shows: a cluster on one terminal, as it changes.

It is a client like ``penstock ps``: it asks the gateway, and holds nothing that a refresh does not bring again. Only
``screen_app`` and the widgets load Textual, which the extra ``top`` installs.

In reading order:

* ``terminal_style``: Lines of styled text, with the characters and colours that a terminal has.
* ``job_columns``: Columns of the list of jobs, what a filter matches, and orders.
* ``cluster_watch``: What is asked of the gateway, and how often: windows of the list of jobs, devices, one job.
* ``device_cells``: Devices as cells, by node, in the colour of who holds them.
* ``job_page``: One job as lines: fields, why, sizes, metrics and story.
* ``metric_plot``: Metrics of a job over the time in which it was seen, drawn with characters.
* ``output_lines``: A job's output as a bounded list of lines that can be searched.
* ``line_widgets``: Widgets that draw only the lines that are seen.
* ``panes``: The devices, the queue, a job and its log as widgets.
* ``dialogs``: A question before something is changed, a text over the screen, and the help.
* ``screen_app``: The application: header, keys, refreshes and commands.
"""
