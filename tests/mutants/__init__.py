"""Planted bugs: wrong versions of single rules of the decision engine, each with the test that catches it.

``python -m tests.mutants`` plants them one at a time in a copy of the engine and runs that test. A bug that
no test notices is a hole in the tests; ``engine.toml`` is the list.
"""
