"""The checks, one module per area; ``checks.load`` finds every module here."""
