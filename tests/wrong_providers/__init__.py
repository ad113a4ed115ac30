"""Wrong providers: the fake with one rule switched off, and the checks that must notice.

A check that nobody has seen failing proves nothing. Each function in ``breaches`` plants one mistake in the
kit; ``python -m tests.wrong_providers NAME`` serves the fake with it, and
``python -m tests.wrong_providers.table`` runs the conformance suite against all of them.
"""
