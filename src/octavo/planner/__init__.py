"""What fits on a machine, computed before anything is loaded."""
