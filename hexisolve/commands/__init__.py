"""The commands of the shell: each module parses, calls the library and prints."""
