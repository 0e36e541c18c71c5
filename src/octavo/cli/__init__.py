"""The command line: a thin frontend over the public API, generated from the settings where it can be."""
