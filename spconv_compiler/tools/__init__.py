"""The command-line programs. Each module has `main(argv) -> exit code`."""
