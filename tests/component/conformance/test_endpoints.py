"""Whatever the suite is pointed at, it says in one sentence what it has found, and never passes it."""

import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from bigfleet_base.options import UsageError
from bigfleet_base.wire import TlsCredentials
from bigfleet_providerkit.conformance import connection, runner
from bigfleet_providerkit.conformance.catalogue import Lane
from bigfleet_providerkit.conformance.connection import UnreachableError
from bigfleet_providerkit.conformance.lanes import open_lane
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from bigfleet_providerkit.conformance.target import Target
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.knobs import read_knobs
from bigfleet_providerkit.process import Serving
from tests.component.conformance.world import (
    BaseContract,
    Undeletable,
    certified,
    command,
    inventory,
    served,
    tcp,
)
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule


async def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ended = await command("--target", address)
    assert ended.status == 4
    assert ended.err == (
        f"bigfleet-conformance: nothing listens on {address}: start the provider there or correct --target\n"
    )


async def test_a_tls_port_wants_certificates(tmp_path: Path) -> None:
    tls = TlsCredentials(CertificateAuthority().issue("bigfleet://admin").write(tmp_path), None)
    async with served(serving=Serving(tls=tls)) as address:
        with pytest.raises(UnreachableError) as unreachable:
            await certified(address)
    assert str(unreachable.value) == (
        f"{address} speaks TLS: give --tls-ca, and --cert and --key if it asks for a certificate"
    )


async def test_a_plaintext_port_wants_none(tmp_path: Path) -> None:
    files = CertificateAuthority().issue("bigfleet://shard/s1").write(tmp_path)
    async with served() as address:
        with pytest.raises(UnreachableError, match="does not speak TLS: leave out --tls-ca"):
            await certified(address, tls_ca=str(files.ca), certs=(str(files.cert),), keys=(str(files.key),))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers as an HTTP/1 server"),
        (b"220 mail.example.com ESMTP ready\r\n", "it answers with something that is not HTTP/2"),
    ],
)
async def test_a_server_of_another_protocol_is_named(answer: bytes, said: str) -> None:
    async with tcp(answer) as address:
        with pytest.raises(UnreachableError, match=f"^{address} is no gRPC server: {said}$"):
            await certified(address)


async def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_FIRST_CALL_S", 0.3)
    monkeypatch.setattr(connection, "_SNIFF_S", 0.3)
    async with tcp(b"") as address:
        with pytest.raises(UnreachableError, match="it accepts connections and says nothing"):
            await certified(address)


async def test_grpc_without_a_provider_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(UnreachableError, match="speaks gRPC but is no BigFleet capacity provider"):
            await certified(f"127.0.0.1:{port}")
    finally:
        await server.stop(None)


async def test_a_provider_without_a_free_machine_is_incomplete() -> None:
    async with served(seeds=0) as address:
        ended = await command("--target", address)
    assert ended.status == 3
    assert ended.err.splitlines()[-1] == (
        f"bigfleet-conformance: the provider at {address} has no free machine: it lists no SPECULATIVE one;"
        " give it offerings or seeds"
    )
    assert ended.out == ""


async def test_too_few_machines_are_found_before_anything_is_touched() -> None:
    async with served(seeds=12) as address:
        before = await inventory(address)
        report = await certified(address)
        assert await inventory(address) == before
    assert (report.verdict, report.exit_status) == (Verdict.INCOMPLETE, 3)
    assert "has 12 free machines and 24 are needed" in report.problem


async def test_a_target_that_checks_identities_asks_for_one(tmp_path: Path) -> None:
    ca = CertificateAuthority()
    tls = TlsCredentials(ca.issue("bigfleet://admin").write(tmp_path / "provider"), None)
    mine = ca.issue("bigfleet://shard/s1").write(tmp_path / "mine")
    async with served(serving=Serving(tls=tls)) as address:
        with pytest.raises(UsageError, match="checks who calls: give a --shard-id"):
            await certified(address, tls_ca=str(mine.ca), certs=(str(mine.cert),), keys=(str(mine.key),))


async def test_with_an_identity_every_call_carries_it(tmp_path: Path) -> None:
    ca = CertificateAuthority()
    tls = TlsCredentials(ca.issue("bigfleet://admin").write(tmp_path / "provider"), None)
    mine = ca.issue("bigfleet://shard/s1").write(tmp_path / "mine")
    async with served(serving=Serving(tls=tls)) as address:
        for _ in range(2):  # the second run meets the marks of the first
            report = await certified(
                address,
                select=("B101", "B303", "B302", "B308", "B401", "B406"),
                tls_ca=str(mine.ca),
                certs=(str(mine.cert),),
                keys=(str(mine.key),),
                shard_ids=("s1",),
            )
            assert {id: report.result(id).status for id in ("B101", "B303", "B401", "B406")} == dict.fromkeys(
                ("B101", "B303", "B401", "B406"), Status.PASSED
            )
            assert report.result("B308").status is Status.SKIPPED_CAPABILITY
            assert report.result("B302").status is Status.SKIPPED_FIXTURE


async def test_a_provider_that_knows_no_extension_is_probed_and_left_as_it_was() -> None:
    async with served(service=BaseContract) as address:
        before = await inventory(address)
        report = await certified(address, select=("B101", "B109", "B407"), parallel=3)
        assert await inventory(address) == before
    assert report.capabilities is not None and report.capabilities.info is None
    assert report.capabilities.evidence == {
        "delete": "probe: Delete of an Idle machine answered OK",
        "cursor": "probe: the revision changed over a Create",
    }
    assert [report.result(id).status for id in ("B101", "B109", "B407")] == [Status.PASSED] * 3
    assert report.result("B407").slots_returned == 8


async def test_without_delete_its_ids_are_skipped_with_the_evidence_and_more_machines_are_needed() -> None:
    async with served(Undeletable(), seeds=124, service=BaseContract) as address:
        report = await certified(address, select=("B101", "B109", "B204", "B215", "B409", "X103"))
    assert report.result("B109").status is report.result("B409").status is Status.SKIPPED_CAPABILITY
    assert report.result("B109").reason == "probe: Delete of an Idle machine answered UNIMPLEMENTED"
    assert [report.result(id).status for id in ("B204", "B215", "X103")] == [Status.PASSED] * 3
    async with served(Undeletable(), seeds=119) as address:
        assert "119 free machines and 120 are needed" in (await certified(address)).problem


async def test_what_the_time_did_not_suffice_for_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    async def opening(lane: Lane, *about: Any) -> Target:
        opened.append(lane)
        return await open_lane(lane, *about)

    monkeypatch.setattr(runner, "open_lane", opening)
    async with served(FakeBackend(read_knobs(["latency.create=1h"]))) as address:
        report = await certified(
            address, profiles=("core", "scale"), select=("B101", "B103", "B1101"), timeout=1.0
        )
    assert report.result("B101").status is Status.ERROR
    assert report.result("B101").reason == "cut off: the run's --timeout was over"
    for behaviour_id in ("B103", "B1101"):
        untried = report.result(behaviour_id)
        assert (untried.status, untried.reason) == (Status.NOT_RUN, "the run's --timeout was over")
    assert opened == [Lane.MAIN], "nobody is started for whom there is no time"
    assert report.verdict is Verdict.FAILED


async def test_a_transition_that_takes_too_long_fails_and_names_the_option() -> None:
    limits = dict.fromkeys(("create", "configure", "drain", "delete"), 0.2)
    async with served(FakeBackend(read_knobs(["latency.configure=1h"]))) as address:
        report = await certified(address, select=("B101",), settle={**limits, "create": 15.0})
    assert report.result("B101").status is Status.FAILED
    assert "did not reach CONFIGURED within 0.2 s; it is CONFIGURING (--settle-timeout" in (
        report.result("B101").reason
    )


@rule("conformance.3.6.3")
async def test_the_same_seed_asks_the_same_questions() -> None:
    async with served() as address:
        asked = []
        for seed in (7, 7, 8):
            report = await certified(address, select=("B312",), seed=seed)
            calls = report.result("B312").evidence
            asked.append([(call["token"][1:], call["code"]) for call in calls if "token" in call])
    assert asked[0] == asked[1] != asked[2]
    assert len(asked[0]) >= 200
