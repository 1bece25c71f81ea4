"""
The dashboard: what people look at, over HTTP.

In reading order:

* ``settings``: Where it listens, and what visitors see who have not signed in.
* ``gateway_port``: The gateway, asked in a visitor's name.
* ``sign_in``: Keys for one use, and the sessions that browsers hold.
* ``log_moment``: The moment that a page is about.
* ``time_window``: The window of time that a chart shows.
* ``live_page``: Pages that stay up to date.
* ``metric_series``: What running jobs report, kept for charts.
* ``kept_series``: The series that the cluster keeps, before what was heard.
* ``job_output``: The output of jobs as pages show it.
* ``job_story``: Stories and facts of jobs, asked no more often than they change.
* ``page``: What a page is, and how it becomes HTML.
* ``charts``: Charts and bars.
* ``computations``: Replays that visitors ask for, each a process of its own.
* ``pages``: The pages.
* ``output_stream``: A job's output over HTTP.
* ``metrics_page``: What Prometheus scrapes.
* ``replica_metrics``: The metrics of all replicas, merged.
* ``cluster_metrics``: The cluster's figures, as metrics.
* ``device_metrics``: Devices and lanes, as metrics.
* ``exposition``: Metrics as text, in the form that a scraper takes.
* ``metric_catalogue``: All metrics, with their labels and meanings.
* ``application``: Which address is answered by what.
* ``job_spans``: The life of each job as spans of one trace.
* ``span_export``: Their export, by one replica at a time.
* ``otlp``: The exporter of OpenTelemetry; an extra.
* ``runner``: The dashboard on a bus.
* ``__main__``: ``python -m penstock_dashboard``.
"""
