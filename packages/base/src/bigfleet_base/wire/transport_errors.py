"""Mistakes in addresses, flags and certificates that end a process before it serves or dials.

Each message says what is wrong, where, and what to do: a command line prints it and exits.
"""


class TransportError(Exception):
    """Base of all of them, for the one ``except`` of a command line."""


class AddressError(TransportError):
    """An address that is not of a form we accept, or that cannot be bound."""


class PlaintextRefusedError(TransportError):
    """Plaintext beyond this machine that nobody asked for (deploy.D-20)."""


class PartialTlsError(TransportError):
    """Some of the three TLS flags without the others (deploy.D-15)."""


class CertificateError(TransportError):
    """TLS files that are missing, unreadable, not PEM, or do not belong together."""


class ExpiredCertificateError(CertificateError):
    """The leaf's validity has ended (deploy.D-19)."""


class WrongIdentityError(CertificateError):
    """The leaf does not carry the identity of the process that would present it (deploy.D-19)."""


class Tls13UnavailableError(TransportError):
    """This process cannot promise TLS 1.3, so it uses no TLS at all (deploy.D-18)."""
