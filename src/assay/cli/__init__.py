"""The command line: one file a verb. A verb imports the rooms that it needs when it runs."""
