"""Processes that serve nothing, to see what their parent does: started by the tests of serving.

    python worker_program.py FOLDER WATCH PATIENCE

Each process says what it has in a line on standard output: its number, its process, and the words of the model. A model
of the word "bad" is refused, and one of the word "deadly" ends the process that tries it. Processes that start with the
word "deaf" do not stop when they are told to.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tierank.serve.counters import Counters
from tierank.serve.log import log_to_stderr
from tierank.serve.signals import Signals
from tierank.serve.snapshots import Snapshot
from tierank.serve.workers import Place, fork_workers


def word_of(files: dict[str, bytes]) -> str:
    return files["words.txt"].decode()


def main(folder: str, watch: str, patience: str) -> None:
    log_to_stderr("text")
    counters = Counters(["m"], 3)
    counters.process = 2
    snapshots = {"m": Snapshot.take(Path(folder))}
    with Signals() as signals:
        place = fork_workers(2, snapshots, counters, signals, patience=float(patience), watch=float(watch))
    if place is None:
        print("parent ends", int(counters.total("reloads", "m", "replaced")), flush=True)
        return
    asyncio.run(follow(place))


async def follow(place: Place) -> None:
    word, tried = word_of(place.snapshots["m"].files), ""

    def say(what: str) -> None:  # in one step: the other process writes to the same place
        os.write(1, f"{what} {place.number} {os.getpid()} {word}\n".encode())

    if word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("starts")
    place.tell(ready=True)
    async for message in place.messages():
        if "load" in message:
            tried = (Path(message["place"]) / "words.txt").read_text()
            if tried == "deadly" and place.number == 1:
                os._exit(7)
            place.tell(refusal="a bad word" if tried == "bad" else None)
        elif "change" in message:
            word = tried if message["to_new"] else word
            say("has")
    say("is alone")


if __name__ == "__main__":
    main(*sys.argv[1:])
