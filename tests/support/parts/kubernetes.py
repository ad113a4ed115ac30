"""A Kubernetes API server, alone or with the controllers, the scheduler and kwok as the kubelets."""

import json
import secrets
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.ca import CertificateAuthority
from tests.support.parts.etcd import Etcd
from tests.support.parts.process import HOST, Process, free_port, http_ok, wait_until, with_free_ports
from tests.support.parts.tools import tool

# A control plane shares two cores with others when tests run in parallel.
HEALTHY_SECONDS = 60

KWOK_ANNOTATION = {"kwok.x-k8s.io/node": "fake"}


class KubectlError(Exception):
    """kubectl refused or failed; the text is what it printed for the user."""


class KubeApiserver:
    """kube-apiserver with its own etcd.

    No controller runs: nothing is garbage-collected, and a namespace gets no service account, so no pods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.kubeconfig = folder / "kubeconfig"  # its user may do everything
        self._resources = ExitStack()
        self._files = CertificateAuthority().issue().write(folder / "tls")
        self._tls = ssl.create_default_context(cafile=str(self._files.ca))
        self._token = secrets.token_hex()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def kubectl(self, *arguments: str, stdin: Mapping[str, Any] | None = None) -> str:
        """What the real kubectl prints. `stdin` is an object for `--filename=-`."""
        done = subprocess.run(
            [tool("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            # kubectl caches what the server offers below HOME, and reads the user's settings there.
            env={"HOME": str(self.folder)},
            input=json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip())
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get` as data."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def install_crds(self, paths: Sequence[Path]) -> None:
        """Apply CRDs and wait until the server serves them."""
        for path in paths:
            applied = self.kubectl("apply", f"--filename={path}", "--output=name")
            self._wait_until_served(applied.strip().partition("/")[2])

    def _wait_until_served(self, resource: str) -> None:
        def served() -> bool:
            try:
                self.kubectl("get", resource)
            except KubectlError:
                return False
            return True

        wait_until(served, HEALTHY_SECONDS, f"the API server to serve {resource}")

    def _start(self, stack: ExitStack) -> None:
        self._etcd = stack.enter_context(Etcd(self.folder))
        with_free_ports(partial(self._start_apiserver, stack))

    def _start_apiserver(self, stack: ExitStack) -> None:
        self.port = free_port()
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        process = Process(
            "kube-apiserver",
            [
                tool("kube-apiserver"),
                f"--etcd-servers={self._etcd.endpoint}",
                f"--bind-address={HOST}",
                f"--secure-port={self.port}",
                # Loopback is no address for Service endpoints, and nothing here goes through a Service.
                f"--advertise-address={HOST}",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.96.0.0/16",
                *self._serving_flags(),
                f"--token-auth-file={tokens}",
                "--authorization-mode=RBAC",
                # One key pair serves and signs; nobody checks service accounts from outside.
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self._files.cert}",
                f"--service-account-signing-key-file={self._files.key}",
            ],
            self.folder,
        )
        stack.callback(process.kill)
        process.wait_healthy(lambda: http_ok(self.port, "/readyz", self._tls), HEALTHY_SECONDS)
        self._write_kubeconfig()

    def _serving_flags(self) -> list[str]:
        return [f"--tls-cert-file={self._files.cert}", f"--tls-private-key-file={self._files.key}"]

    def _write_kubeconfig(self) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self._files.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(json.dumps(config))


class KubeControlPlane(KubeApiserver):
    """API server, controller manager, scheduler, and kwok for the nodes made with `kwok_node`.

    `crds` are installed before the controllers start: the garbage collector looks for new kinds only every
    30 s, and until then leaves their objects behind.
    """

    def __init__(self, folder: Path, *, crds: Sequence[Path] = ()) -> None:
        super().__init__(folder)
        self._crds = crds

    def create_namespace(self, name: str) -> None:
        """Make a namespace and wait for the service account without which it takes no pods."""
        self.kubectl("create", "namespace", name)
        self._wait_for_service_account(name)

    def _start(self, stack: ExitStack) -> None:
        super()._start(stack)
        self.install_crds(self._crds)
        for name in ("kube-controller-manager", "kube-scheduler"):
            with_free_ports(partial(self._start_controller, name, stack))
        with_free_ports(partial(self._start_kwok, stack))
        self._wait_for_service_account("default")

    def _start_controller(self, name: str, stack: ExitStack) -> None:
        port = free_port()
        flags = [
            # As administrator: with an identity per controller the manager takes 6 s longer to start.
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            f"--bind-address={HOST}",
            f"--secure-port={port}",
            *self._serving_flags(),
        ]
        if name == "kube-controller-manager":
            flags += [
                f"--service-account-private-key-file={self._files.key}",
                f"--root-ca-file={self._files.ca}",
            ]
        process = Process(name, [tool(name), *flags], self.folder)
        stack.callback(process.kill)
        process.wait_healthy(lambda: http_ok(port, "/healthz", self._tls), HEALTHY_SECONDS)

    def _start_kwok(self, stack: ExitStack) -> None:
        port = free_port()
        selector = ",".join(f"{key}={value}" for key, value in KWOK_ANNOTATION.items())
        process = Process(
            "kwok",
            [
                tool("kwok"),
                f"--kubeconfig={self.kubeconfig}",
                *(f"--config={stage}" for stage in sorted(tool("stages").iterdir())),
                f"--manage-nodes-with-annotation-selector={selector}",
                "--node-lease-duration-seconds=40",
                f"--server-address={HOST}:{port}",
            ],
            self.folder,
        )
        stack.callback(process.kill)
        process.wait_healthy(lambda: http_ok(port, "/healthz"), HEALTHY_SECONDS)

    def _wait_for_service_account(self, namespace: str) -> None:
        def exists() -> bool:
            return bool(self.get("serviceaccounts", f"--namespace={namespace}")["items"])

        wait_until(exists, HEALTHY_SECONDS, f"the service account of namespace {namespace}")


def kwok_node(name: str, *, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A Node for which kwok plays the kubelet: it becomes Ready, and pods bound to it run at once.

    kwok renews the lease of such a Node; whoever else makes one with this annotation must not.
    """
    resources = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": KWOK_ANNOTATION,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }
