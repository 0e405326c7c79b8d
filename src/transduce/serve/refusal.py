"""The exception for a request that gets no translation."""


class Refusal(Exception):
    """A request that is refused, with the status and the message that the client gets.

    reason: the label in the metrics; one of a fixed set. retry_after: seconds, for the header Retry-After.
    closes: True if the connection must end, because the rest of the request is unread.
    """

    def __init__(
        self, status: int, message: str, reason: str, *, retry_after: int | None = None, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after
        self.closes = closes

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**headers, "Connection": "close"} if self.closes else headers

    def at(self, place: str) -> "Refusal":
        """Return the refusal, with its place in the request if the content of the request is wrong."""
        return invalid(f"{place}: {self.message}") if self.status == 400 else self


def invalid(message: str) -> Refusal:
    """Return the refusal of a request whose content is wrong: status 400."""
    return Refusal(400, message, "invalid")
