"""Keys: their file, the limit, the name and the share of each; and the origins of pages."""

import time
from pathlib import Path

import pytest
from support.serving import Reverser, served

from transduce.errors import UserError
from transduce.serve.keys import Account, ApiKey, read_keys
from transduce.serve.refusal import Refusal
from transduce.serve.settings import ServerSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_keys_are_the_lines_of_a_file(file: Path) -> None:
    file.write_text("# of the web site\nab \n\n  # none\ncd\n")
    assert read_keys(file) == (ApiKey("ab", "line-2"), ApiKey("cd", "line-5"))


def test_a_byte_order_mark_and_comments_are_no_part_of_a_key(file: Path) -> None:
    file.write_text("\ufeffab # the first\r\ncd#2\t# the second\n", "utf-8")
    assert [key.text for key in read_keys(file)] == ["ab", "cd#2"]


def test_a_key_has_a_name_a_limit_and_a_share(file: Path) -> None:
    file.write_text("ab name=web per-minute=60 share=2.5 # site\ncd share=3")
    assert read_keys(file) == (ApiKey("ab", "web", 60, 2.5), ApiKey("cd", "line-2", None, 3.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# none\n", "expected at least one key"),
        ("a\nsecret word", "line 2: expected KEY, and then any of name=NAME, per-minute=REQUESTS, share=NUMBER"),
        ("secret name=a/b", "line 1: expected KEY"),
        ("secret per-minute=0", "line 1: expected KEY"),
        ("secret per-minute=\u0663", "line 1: expected KEY"),
        ("secret share=0", "line 1: expected KEY"),
        ("secret share=inf", "line 1: expected KEY"),
        ("secret Share=1", "line 1: expected KEY"),
        ("secret\nb\nsecret", "line 3: expected each key once"),
    ],
)
def test_mistakes_in_the_file_are_named_without_a_word_of_it(file: Path, text: str, message: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(UserError) as error:
        read_keys(file)
    assert message in str(error.value) and "secret" not in str(error.value) and "word" not in str(error.value)


def test_requests_beyond_the_limit_of_a_key_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    account = Account(ApiKey("ab", "web", per_minute=20))
    for _ in range(20):
        account.count_request()
    with pytest.raises(Refusal, match="at most 20 requests in a minute with this key; try again in 3 s") as refusal:
        account.count_request()
    assert (refusal.value.status, refusal.value.retry_after) == (429, 3)
    now += 3
    account.count_request()
    with pytest.raises(Refusal):
        account.count_request()
    now += 600
    for _ in range(20):
        account.count_request()
    with pytest.raises(Refusal):
        account.count_request()


def test_the_name_of_a_key_is_in_log_and_metrics_and_its_share_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = list[float]()
    with served(Reverser(), keys=["secret"]) as service:
        put = service.queue.put
        monkeypatch.setattr(service.queue, "put", lambda work, sender: (shares.append(sender.share), put(work, sender)))
        assert service.translate("a b", api_key="secret").status == 200
        body = {"text": ["a b c"], "target_lang": "DE"}
        assert service.post("/v2/translate", {"Authorization": "DeepL-Auth-Key secret"}, **body).status == 200
        assert service.translate("a", api_key="wrong").status == 403
        metrics = service.metrics.text().decode()
    assert [line["key"] for line in service.log] == ["owner-0", "owner-0", ""]
    assert 'transduce_key_requests_total{code="200",key="owner-0"} 2.0' in metrics
    assert 'transduce_key_characters_total{key="owner-0"} 8.0' in metrics
    assert "secret" not in metrics + service.log_text and "sender" not in service.log_text
    assert shares == [1.0, 1.0]


def test_each_origin_of_a_list_gets_itself(file: Path) -> None:
    settings = ServerSettings(cors="https://a.example,http://b.example:8080")
    with served(settings=settings) as service:
        for origin in settings.origins:
            answer = service.call("OPTIONS", "/translate", headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin and answer.headers["vary"] == "Origin"
            assert int(answer.headers["access-control-max-age"]) >= 600
        other = service.call("GET", "/health", headers={"origin": "https://c.example"})
        assert other.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-max-age" not in other.headers


@pytest.mark.parametrize("cors", ["", "a,b", "https://a.example/", "https://a, https://b", "*,https://a", "https://ä"])
def test_origins_that_no_browser_sends_are_mistakes(cors: str) -> None:
    with pytest.raises(UserError, match="expected \\* or origins, such as https://example.org"):
        ServerSettings(cors=cors)


def test_answers_to_probes_need_not_be_in_the_log() -> None:
    with served(settings=ServerSettings(logs_probes=False)) as service:
        for path in ("/healthz", "/health", "/metrics", "/readyz", "/languages"):
            service.call("GET", path)
    assert [(line["route"], line["status"]) for line in service.log] == [("/readyz", 503), ("/languages", 200)]
