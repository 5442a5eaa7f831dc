"""Checkpoint → GGUF: everything is decided in a plan, then written.

In: a draft and its target. Out: the file. What stands where is said in `rows` (tables); it must not know how a draft is
run or how its file is judged.
"""
