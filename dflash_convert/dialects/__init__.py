"""The GGUF formats that DFlash drafts are found in, one module each; `table` tells which one a file is in.

A dialect is a row: by what it is known, what it was written for, where it keeps its values, and what its numbers mean.
Every module but `table` imports the standard library only. `migrations` tells which of them can be made mainline's.
"""
