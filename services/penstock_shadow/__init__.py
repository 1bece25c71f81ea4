"""A shadow: the production ranker and matcher under another policy, beside a live cluster and never in its way."""
