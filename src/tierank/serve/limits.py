"""How much a caller may ask for at once."""

from dataclasses import dataclass

from tierank.settings import as_whole


@dataclass(frozen=True)
class Limits:
    """``max_bytes`` of a body, ``max_documents`` of a request, and ``max_waiting`` requests that wait for a thread."""

    max_bytes: int = 16 << 20
    max_documents: int = 10_000
    max_waiting: int = 256

    def __post_init__(self) -> None:
        as_whole("max_bytes", self.max_bytes)
        as_whole("max_documents", self.max_documents)
        as_whole("max_waiting", self.max_waiting, least=0)
