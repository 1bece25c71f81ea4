"""Runs that share their devices with others: who takes turns with whom, and what they hold."""
