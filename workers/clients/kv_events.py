"""Reads a worker's cache events with pyzmq and msgspec, as routers written for vLLM do.

Arguments: the worker's address, and the endpoints of events and replays.
"""
import sys
from typing import Optional, Union

import msgspec
import zmq
from checks import TIMEOUT, check, fetch, report


class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Base of the events, which are arrays that begin with their names."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


WORKER, EVENTS, REPLAY = sys.argv[1:]
PROMPT = "Events of the cache. " * 4
END = (-1).to_bytes(8, "big", signed=True)
decode = msgspec.msgpack.Decoder(type=Batch).decode


def connect(kind, endpoint):
    socket = zmq.Context.instance().socket(kind)
    socket.connect(endpoint)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def received(socket):
    check("message arrives", socket.poll(TIMEOUT * 1000), "timeout")
    return socket.recv_multipart()


subscriber = connect(zmq.SUB, EVENTS)
subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
# Each request stores other blocks. A subscription takes effect after a while, as the first messages show.
turn = 0
while not subscriber.poll(10):
    turn += 1
    fetch(WORKER, "/v1/completions", {"prompt": f"{turn} {PROMPT}", "max_tokens": 1})
topic, number, payload = received(subscriber)
live = decode(payload)
check("topic", topic == b"kv@worker@tiny", topic)

# The replay has all batches from the first on. Its blocks are the tokens that the worker computed.
asking = connect(zmq.DEALER, REPLAY)
asking.send_multipart([b"", (0).to_bytes(8, "big")])
batches, tokens = [], {}
while (frames := received(asking))[1] != END:
    check("numbers have no gap", int.from_bytes(frames[1], "big") == len(batches), frames[1])
    batches.append(decode(frames[2]))
    for event in batches[-1].events:
        check("blocks are stored", isinstance(event, BlockStored), event)
        check("size of blocks", event.block_size * len(event.block_hashes) == len(event.token_ids), event)
        prefix = tokens[event.parent_block_hash] if event.parent_block_hash is not None else []
        for place, block in enumerate(event.block_hashes):
            prefix = prefix + event.token_ids[place * event.block_size : (place + 1) * event.block_size]
            tokens[block] = prefix
check("the replay contains the message", live in batches)
check("rank", all(batch.data_parallel_rank == 0 for batch in batches))
wanted = fetch(WORKER, "/tokenize", {"content": f"1 {PROMPT}", "add_special": True})["tokens"]
longest = max((prefix for prefix in tokens.values() if prefix == wanted[: len(prefix)]), key=len, default=[])
check("the prompt's blocks are reported", len(longest) >= len(wanted) - 16, (longest, wanted))
report("kv_events")
