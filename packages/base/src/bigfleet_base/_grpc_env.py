"""The one place that pins gRPC to TLS 1.3; it must run before grpc is loaded.

grpcio cannot be told a minimum TLS version, and it reads its environment once, while it is imported. The
only TLS 1.2 suite left is one with a pre-shared key, which nobody here configures, so every TLS 1.2
handshake ends without a shared cipher; the suites of TLS 1.3 do not depend on this setting.
The package imports this module first, so that no module of ours can load grpc before it.
"""

import os
import sys

CIPHER_SUITES_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
NO_TLS12_SUITES = "ECDHE-PSK-CHACHA20-POLY1305"

# False only when foreign code loaded grpc first, with another setting. That is harmless on plaintext, so
# it is refused where TLS is set up and not here.
TLS13_PINNED = "grpc" not in sys.modules or os.environ.get(CIPHER_SUITES_VARIABLE) == NO_TLS12_SUITES

# Overrides a value from outside: an environment must not be able to bring TLS 1.2 back.
os.environ[CIPHER_SUITES_VARIABLE] = NO_TLS12_SUITES
