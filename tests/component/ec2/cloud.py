"""EC2 for tests: moto's server as a process, behind a proxy that adds what moto leaves out.

That is: client tokens, EC2's refusals, guests that boot and run their user data, spot requests, and, on
request, the ways in which EC2 fails. As a program it runs a command with an EC2 of its own::

    python -m tests.component.ec2.cloud COMMAND...
"""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

from tests.support.parts.process import free_port

REGION = "eu-west-1"
TEMPLATE = "bigfleet"
PRICES = {"m5.large": 0.107, "c5.xlarge": 0.192}
READY = "bigfleet.lucy.sh/ready"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
_CODES = {"pending": "0", "running": "16", "stopping": "64", "stopped": "80"}
ElementTree.register_namespace("", _NAMESPACE)


class Answer(NamedTuple):
    status: int
    body: bytes


class Cloud:
    """The proxy. What it is told to do wrong it does from the next request on."""

    def __init__(self, moto: str) -> None:
        self.moto = moto
        self._lock = threading.RLock()
        self._closing = threading.Condition(self._lock)
        self._door = 0
        self.reset()
        image = {"ImageId": "ami-12345678"}
        client(moto).create_launch_template(LaunchTemplateName=TEMPLATE, LaunchTemplateData=image)
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"cloud": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """An empty, healthy region."""
        with self._lock:
            self.calls: list[tuple[str, dict[str, str]]] = []
            self.guests_boot = True
            self.lag = 0
            """How many descriptions show what was before a change."""
            self.lagged = 0
            """How often one did so."""
            self._tokens: dict[tuple[str, str], tuple[dict[str, str], Answer]] = {}
            self._errors: dict[str, list[str]] = {}
            self._held: set[str] = set()
            self._before: dict[str, tuple[int, str]] = {}
            self._spot: dict[str, tuple[str, str]] = {}
            self._cancelled: set[str] = set()
            self._launched: dict[str, None] = {}
            self._marked: set[str] = set()
            self._planned: set[str] = set()
            self._prices: dict[tuple[str, str], float] = {}
        # moto's own way to start anew takes ten times as long.
        if left := list(self.instances()):
            client(self.moto).terminate_instances(InstanceIds=left)
        for volume in self.volumes():
            client(self.moto).delete_volume(VolumeId=volume["VolumeId"])

    def fail(self, action: str, code: str, times: int = 1) -> None:
        """Refuse the next calls of an action."""
        with self._lock:
            self._errors.setdefault(action, []).extend([code] * times)

    def hold(self, action: str) -> None:
        """Do what is asked the next time, and do not answer until the door is closed."""
        with self._lock:
            self._held.add(action)

    def door(self) -> str:
        """A new way in. Those before it are closed, for whatever is left of a provider that has ended."""
        with self._closing:
            self._door += 1
            self._closing.notify_all()
            return f"{self.url}/{self._door}/"

    def untag(self, instance: str, key: str) -> None:
        client(self.moto).delete_tags(Resources=[instance], Tags=[{"Key": key}])

    def mark_for_stop(self, instance: str) -> None:
        """Give notice of a spot interruption."""
        self._marked.add(instance)

    def plan_retirement(self, instance: str) -> None:
        """Plan an event."""
        self._planned.add(instance)

    def set_spot_price(self, kind: str, zone: str, price: float) -> None:
        self._prices[kind, zone] = price

    def count(self, action: str) -> int:
        """How often the action was asked for."""
        with self._lock:
            return Counter(name for name, _ in self.calls)[action]

    def actions(self) -> list[str]:
        with self._lock:
            return [name for name, _ in self.calls]

    def instances(self, *states: str) -> dict[str, dict[str, Any]]:
        """The instances that really exist, whatever descriptions say."""
        wanted = states or ("pending", "running", "stopping", "stopped")
        found = client(self.moto).describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": list(wanted)}], MaxResults=1000
        )
        return {row["InstanceId"]: row for group in found["Reservations"] for row in group["Instances"]}

    def tags(self, instance: str) -> dict[str, str]:
        found = client(self.moto).describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][
            0
        ]
        return {row["Key"]: row["Value"] for row in found["Tags"]}

    def volumes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client(self.moto).describe_volumes()["Volumes"]
        return found

    def user_data(self, instance: str) -> bytes:
        found = client(self.moto).describe_instance_attribute(InstanceId=instance, Attribute="userData")
        return base64.b64decode(found["UserData"].get("Value", ""))

    def boot(self, instance: str) -> None:
        """Be the guest: run the user data, whose end is the tag that says so."""
        data = self.user_data(instance)
        script = gzip.decompress(data).decode() if data[:2] == b"\x1f\x8b" else ""
        if found := re.search(r"^operation=(\S+)$", script, re.MULTILINE):
            tag = {"Key": READY, "Value": found[1].strip("'")}
            client(self.moto).create_tags(Resources=[instance], Tags=[tag])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ---- requests

    def handle(self, door: str, body: bytes, headers: Mapping[str, str]) -> Answer | None:
        """The answer, or None for none at all."""
        asked = dict(parse_qsl(body.decode(), keep_blank_values=True))
        action = asked["Action"]
        with self._closing:
            if door not in ("", str(self._door)):
                return _error("UnauthorizedOperation")
            self.calls.append((action, asked))
            # One at a time: the checks below and what follows from them are one step, as in EC2.
            answer = self._refused(action, asked) or self._done(action, asked, body, headers)
            if action not in self._held:
                return answer
            self._held.discard(action)
            self._closing.wait_for(lambda: door != str(self._door), timeout=60)
            return None

    def _refused(self, action: str, asked: dict[str, str]) -> Answer | None:
        if errors := self._errors.get(action):
            return _error(errors.pop(0))
        if action == "ModifyInstanceAttribute" and (data := asked.get("UserData.Value")) is not None:
            if self._state(asked["InstanceId"]) != "stopped":
                return _error("IncorrectInstanceState")
            if len(base64.b64decode(data)) > 16 << 10:
                return _error("InvalidParameterValue")
        if action in ("AttachVolume", "DetachVolume") and self._state(asked["InstanceId"]) != "stopped":
            return _error("IncorrectState")
        too_long = [name for name, value in asked.items() if "Tag" in name and len(value) > 256]
        return _error("InvalidParameterValue") if too_long else None

    def _done(self, action: str, asked: dict[str, str], body: bytes, headers: Mapping[str, str]) -> Answer:
        match action:
            case "DescribeSpotInstanceRequests":
                return self._spot_requests()
            case "CancelSpotInstanceRequests":
                self._cancelled |= {
                    value for name, value in asked.items() if name.startswith("SpotInstanceReq")
                }
                return _answer(action, "")
            case "DescribeInstanceStatus":
                return self._statuses()
            case "DescribeSpotPriceHistory":
                return self._spot_prices()
            case "RunInstances" | "CreateVolume" if "ClientToken" in asked:
                return self._once(action, asked, body, headers)
            case "DescribeInstances" if "InstanceId.1" not in asked and not self._launched:
                return _answer(action, "<reservationSet/>")
            case "DescribeInstances":
                return self._described(asked, self._forward(self._named(asked), headers))
            case "TerminateInstances":
                self._launched.pop(asked["InstanceId.1"], None)
                return self._forward(body, headers)
            case "ModifyInstanceAttribute" if "UserData.Value" in asked:
                # moto takes the base64 off twice.
                twice = base64.b64encode(asked["UserData.Value"].encode()).decode()
                return self._forward(urlencode({**asked, "UserData.Value": twice}).encode(), headers)
            case "StartInstances" | "StopInstances":
                instance = asked["InstanceId.1"]
                self._before[instance] = (self.lag, self._state(instance))
                answer = self._forward(body, headers)
                if action == "StartInstances" and self.guests_boot and answer.status == 200:
                    self.boot(instance)
                return answer
            case _:
                return self._forward(body, headers)

    def _once(self, action: str, asked: dict[str, str], body: bytes, headers: Mapping[str, str]) -> Answer:
        key = (action, asked["ClientToken"])
        if key in self._tokens:
            first, answer = self._tokens[key]
            return answer if first == asked else _error("IdempotentParameterMismatch")
        answer = self._forward(body, headers)
        if answer.status == 200:
            self._tokens[key] = (asked, answer)
            if found := re.search(rb"<instanceId>(i-[0-9a-f]+)<", answer.body):
                instance = found[1].decode()
                self._launched[instance] = None
                self._before[instance] = (self.lag, "")
                if asked.get("InstanceMarketOptions.MarketType") == "spot":
                    self._spot[instance] = (f"sir-{instance[2:]}", _tag(asked, "bigfleet.lucy.sh/machine"))
        return answer

    def _named(self, asked: dict[str, str]) -> bytes:
        """Ask moto by name: it keeps terminated instances for ever, and else looks through all of them."""
        if "InstanceId.1" in asked:
            return urlencode(asked).encode()
        rest = {name: value for name, value in asked.items() if name != "MaxResults"}
        names = {f"InstanceId.{place}": name for place, name in enumerate(self._launched, start=1)}
        return urlencode({**rest, **names}).encode()

    def _described(self, asked: dict[str, str], answer: Answer) -> Answer:
        """Descriptions lag behind, and know the requests of spot instances."""
        if answer.status != 200:
            return answer
        tree = ElementTree.fromstring(answer.body)
        groups = tree.find(f"{{{_NAMESPACE}}}reservationSet")
        assert groups is not None
        for group in list(groups):
            row = group.find(f"{{{_NAMESPACE}}}instancesSet/{{{_NAMESPACE}}}item")
            assert row is not None
            instance = row.findtext(f"{{{_NAMESPACE}}}instanceId") or ""
            left, before = self._before.get(instance, (0, ""))
            if left:
                self.lagged += 1
                self._before[instance] = (left - 1, before)
            if left and not before:
                if "InstanceId.1" in asked:
                    return _error("InvalidInstanceID.NotFound")
                groups.remove(group)
            elif left:
                for name, value in (("name", before), ("code", _CODES[before])):
                    state = row.find(f"{{{_NAMESPACE}}}instanceState/{{{_NAMESPACE}}}{name}")
                    assert state is not None
                    state.text = value
            if instance in self._spot:
                name = f"{{{_NAMESPACE}}}spotInstanceRequestId"
                request = row.find(name)
                request = ElementTree.SubElement(row, name) if request is None else request
                request.text = self._spot[instance][0]
        return Answer(200, ElementTree.tostring(tree))

    def _state(self, instance: str) -> str:
        found = client(self.moto).describe_instances(InstanceIds=[instance])
        state: str = found["Reservations"][0]["Instances"][0]["State"]["Name"]
        return state

    def _spot_requests(self) -> Answer:
        items = "".join(
            f"<item><spotInstanceRequestId>{request}</spotInstanceRequestId><instanceId>{instance}</instanceId>"
            f"<status><code>{'marked-for-stop' if instance in self._marked else 'fulfilled'}</code></status>"
            f"<tagSet><item><key>bigfleet.lucy.sh/machine</key><value>{machine}</value></item></tagSet></item>"
            for instance, (request, machine) in self._spot.items()
            if request not in self._cancelled
        )
        return _answer(
            "DescribeSpotInstanceRequests", f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>"
        )

    def _statuses(self) -> Answer:
        items = "".join(
            f"<item><instanceId>{instance}</instanceId><eventsSet><item><code>instance-retirement</code>"
            "<description>degraded hardware</description></item></eventsSet></item>"
            for instance in self._planned
        )
        return _answer("DescribeInstanceStatus", f"<instanceStatusSet>{items}</instanceStatusSet>")

    def _spot_prices(self) -> Answer:
        items = "".join(
            f"<item><instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
            f"<spotPrice>{price}</spotPrice></item>"
            for (kind, zone), price in self._prices.items()
        )
        return _answer("DescribeSpotPriceHistory", f"<spotPriceHistorySet>{items}</spotPriceHistorySet>")

    def _forward(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        kept = {
            name: headers[name] for name in ("Authorization", "Content-Type", "X-Amz-Date") if name in headers
        }
        request = urllib.request.Request(self.moto, data=body, headers=kept)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # By default it is 5, and whoever comes sixth waits for seconds or is turned away.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Whoever asked may be dead by now.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cloud: Cloud

    def do_POST(self) -> None:
        body = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(body) < length:
            raise ConnectionError("killed in the middle of a sentence")
        answer = self.cloud.handle(self.path.strip("/"), body, dict(self.headers.items()))
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


def client(url: str) -> Any:
    """A client of whatever serves EC2 there."""
    if url not in _clients:
        import boto3  # type: ignore[import-untyped]  # published without types

        _clients[url] = boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
    return _clients[url]


_clients: dict[str, Any] = {}


@contextmanager
def running_cloud(folder: Path) -> Iterator[Cloud]:
    """moto's server and the proxy, both gone afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("ab") as log:
        moto = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **CREDENTIALS})
    try:
        _await_moto(moto, port, folder / "moto.log")
        cloud = Cloud(f"http://127.0.0.1:{port}")
        try:
            yield cloud
        finally:
            cloud.close()
    finally:
        moto.kill()
        moto.wait()


def _await_moto(moto: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/data.json", timeout=5).close()
            return
        except OSError:
            assert moto.poll() is None and time.monotonic() < deadline, log.read_text()[-4_000:]
            time.sleep(0.02)


def _tag(asked: dict[str, str], key: str) -> str:
    name = next(name for name, value in asked.items() if value == key)
    return asked[name.removesuffix("Key") + "Value"]


def _answer(action: str, content: str) -> Answer:
    text = f'<{action}Response xmlns="{_NAMESPACE}"><requestId>r</requestId>{content}</{action}Response>'
    return Answer(200, text.encode())


def _error(code: str) -> Answer:
    status = 503 if code in ("RequestLimitExceeded", "Unavailable") else 400
    errors = f"<Errors><Error><Code>{code}</Code><Message>as the test wants it</Message></Error></Errors>"
    return Answer(status, f"<Response>{errors}<RequestID>r</RequestID></Response>".encode())


def main() -> int:
    """Run a command with an EC2 of its own, to which every ec2 provider below it goes."""
    with tempfile.TemporaryDirectory() as folder, running_cloud(Path(folder)) as cloud:
        prices = Path(folder) / "prices.json"
        prices.write_text(json.dumps(PRICES))
        options = {
            "REGION": REGION,
            "ENDPOINT_URL": cloud.url,
            "LAUNCH_TEMPLATE": TEMPLATE,
            "PRICES": str(prices),
            "POLL": "50ms",
            # Fault hooks alone would make it 2 s, and on a busy computer a Drain's dozen calls take longer.
            "TIMEOUT_CREATE": "10s",
            "TIMEOUT_CONFIGURE": "10s",
            "TIMEOUT_DRAIN": "30s",
            "TIMEOUT_DELETE": "30s",
        }
        environment = {f"BIGFLEET_PROVIDER_{name}": value for name, value in options.items()}
        return subprocess.run(sys.argv[1:], env={**os.environ, **CREDENTIALS, **environment}).returncode


if __name__ == "__main__":
    sys.exit(main())
