"""The client's side of a turn: what goes out, and what happens when nobody reads."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from gateway.relay.client import Client, Inbound

INBOUND = Inbound("0" * 32, "/v1/chat/completions", None, {}, None, b"{}", 0)


async def test_bytes_that_the_socket_takes_go_out_in_order() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    client = Client(INBOUND, send, [], 60.0)
    await client.begin(200, [])
    await client.send(b"a")
    await client.send(b"b", more=False)
    assert [message.get("body") for message in sent] == [None, b"a", b"b"]
    assert client.gone is None


async def test_a_full_socket_is_waited_for_and_the_rest_of_the_sending_is_done() -> None:
    room, done = asyncio.Event(), []

    async def send(message: MutableMapping[str, Any]) -> None:
        await room.wait()
        await asyncio.sleep(0)
        done.append(message["body"])

    client = Client(INBOUND, send, [], 60.0)
    sending = asyncio.create_task(client.send(b"a"))
    await asyncio.sleep(0)
    assert not done
    room.set()
    await sending
    assert done == [b"a"]
    assert client.gone is None


async def test_a_client_that_does_not_read_is_given_up_and_its_sending_is_cleaned_up() -> None:
    cleaned = []

    async def send(message: MutableMapping[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    client = Client(INBOUND, send, [], 0.001)
    await client.send(b"a")
    assert client.gone == "the client did not read for 0.001 s"
    assert cleaned
    await client.send(b"b")  # nothing is sent any more
    assert cleaned == [True]


async def test_a_sending_that_is_cancelled_stays_cancelled() -> None:
    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    sending = asyncio.create_task(Client(INBOUND, send, [], 60.0).send(b"a"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
