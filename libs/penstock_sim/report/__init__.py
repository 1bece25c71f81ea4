"""What people read of simulations: figures, tables, plots and a page."""
