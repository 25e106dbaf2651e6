"""Public bug reports that a library of this kind could repeat, one file an entry, with the numbers of the report.

README.md lists every entry and what is tested of it.
"""
