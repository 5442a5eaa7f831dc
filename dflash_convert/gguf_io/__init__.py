"""A GGUF on this disk: its header, reading it, laying one out, writing it.

In: a path, or a `Plan`. Out: a `GGUFFile`, or a file. It must not know what the keys and tensors mean, nor where they
come from.
"""
