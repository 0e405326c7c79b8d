"""The command line: one command, its subcommands, and the exit codes."""
