"""A stand-in for the package expecttest, from which torch's tests take a base class.

The tests that run here compare no expected text, so the class needs nothing but its name.
"""

import unittest


class TestCase(unittest.TestCase):
    """What torch.testing's TestCase is derived from."""
