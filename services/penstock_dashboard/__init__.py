"""
The dashboard: what people look at, over HTTP.

In reading order:

* ``settings``: Where it listens, and what visitors see who have not signed in.
* ``metrics_page``: What Prometheus scrapes.
* ``replica_metrics``: The metrics of all replicas, merged.
* ``cluster_metrics``: The cluster's figures, as metrics.
* ``device_metrics``: Devices and lanes, as metrics.
* ``exposition``: Metrics as text, in the form that a scraper takes.
* ``metric_catalogue``: All metrics, with their labels and meanings.
* ``application``: Which address is answered by what.
* ``runner``: The dashboard on a bus.
* ``__main__``: ``python -m penstock_dashboard``.
"""
