"""``python -m penstock``: the command line, by name, since the SDK does not need it."""

from importlib import import_module

import_module("penstock_cli").main()
