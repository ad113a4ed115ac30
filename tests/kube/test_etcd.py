"""etcd keeps what it confirmed, whichever member dies."""

from collections.abc import Callable

from tests.support.parts import Etcd, EtcdCluster, wait_until


def test_server_returns_what_was_written(etcd: Etcd) -> None:
    etcd.etcdctl("put", "greeting", "hello")

    assert etcd.etcdctl("get", "greeting") == "greeting\nhello\n"


def test_three_members_survive_kill_of_their_leader(
    etcd_cluster: Callable[[int], EtcdCluster], full_size: bool
) -> None:
    cluster = etcd_cluster(3)
    for number in range(20 if full_size else 1):
        kill_leader_and_bring_it_back(cluster, f"before-{number}", f"after-{number}")


def kill_leader_and_bring_it_back(cluster: EtcdCluster, before: str, after: str) -> None:
    cluster.etcdctl("put", before, "committed")
    killed = cluster.leader()

    killed.kill()

    assert cluster.leader() is not killed
    assert cluster.etcdctl("get", before) == f"{before}\ncommitted\n"
    cluster.etcdctl("put", after, "written without it")

    killed.restart()

    def caught_up() -> bool:
        # A serializable read is answered by the member itself, from what has reached it.
        return killed.etcdctl("get", after, "--consistency=s") == f"{after}\nwritten without it\n"

    wait_until(caught_up, 15, f"{killed.name} to catch up with the others")
