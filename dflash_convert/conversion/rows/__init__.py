"""The mapping as tables: keys, tensors, where config values live, families, targets.

In: nothing. Out: rows of frozen dataclasses and named functions of a config. They import dataclasses and one another,
and nothing else.
"""
