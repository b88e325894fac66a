"""A test case whose tests share a server of their own."""
import unittest

import tensorhub


class ServerTestCase(unittest.TestCase):
    """Its tests reach the server at `server.address`; it ends with the last of them."""

    @classmethod
    def setUpClass(cls):
        cls.server = tensorhub.serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
