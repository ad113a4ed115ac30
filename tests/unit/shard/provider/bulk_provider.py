"""A provider in a process of its own that lists many machines.

``python -m … COUNT paged|whole`` prints its address and serves until its standard input ends. After every
full List one machine in a hundred has another price. A paged one describes itself as keeping the cursor.
"""

import asyncio
import sys
from typing import Any

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from tests.unit.base.wire.provider_records import message, record
from tests.unit.shard.provider.scripted import scripted_provider


class Fleet:
    def __init__(self, count: int) -> None:
        self.count = count
        self.pieces = [message([self.machine(n)]) for n in range(count)]
        self.lists = 0

    def machine(self, number: int, price: float = 1.0) -> pb.Machine:
        labels = {"topology.bigfleet/rack": f"r{number % 50}", "kubernetes.io/arch": "amd64"}
        return record(number, labels=labels, price_per_hour=price)

    def list(self, request: Any) -> bytes:
        start = int(request.since_revision or b"0")
        stop = min(start + (request.max_results or self.count), self.count)
        if start == 0:
            self.lists += 1
            for number in range(0, self.count, 100):
                self.pieces[number] = message([self.machine(number, price=float(self.lists))])
        is_whole = stop - start == self.count
        return b"".join(self.pieces[start:stop]) + message(revision=b"%d" % stop, full=is_whole)


async def main(count: int, mode: str) -> None:
    fleet = Fleet(count)
    async with scripted_provider() as provider:
        provider.answer("List", fleet.list)
        if mode == "paged":
            info = info_pb.DescribeResponse(cursor=True, tombstones=True)
            provider.answer("Describe", info.SerializeToString())
        print(provider.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
