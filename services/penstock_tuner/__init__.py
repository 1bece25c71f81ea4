"""The tuner: turns a sweep into trials, gives each its devices, and says which was best."""
