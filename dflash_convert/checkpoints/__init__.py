"""A checkpoint on this disk: safetensors, its index, its tokenizer files, the odd pickle.

In: a folder. Out: names, shapes, rows on demand, checked. It must not know what a draft is, nor what a GGUF is.
"""
