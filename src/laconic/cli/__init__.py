"""The command line: one file for each command, with its options and help texts and no logic."""
