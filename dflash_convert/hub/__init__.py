"""The Hugging Face Hub: what a user types → files on this disk.

In: an id, a folder or a file. Out: a `Source`. The only room with a network; it knows which files to fetch and how
to word a failure, and must not know what is in them.
"""
