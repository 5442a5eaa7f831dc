"""GGUF → quantized GGUF: which type each tensor gets, and the writing of it.

In: an opened GGUF and a file type. Out: a plan, then the file. The kernels are `quants`; it must not know what
a draft is.
"""
