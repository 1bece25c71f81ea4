"""
The dashboard: what people look at, over HTTP.

In reading order:

* ``settings``: Where it listens, and what visitors see who have not signed in.
* ``application``: Which address is answered by what.
* ``runner``: The dashboard on a bus.
* ``__main__``: ``python -m penstock_dashboard``.
"""
