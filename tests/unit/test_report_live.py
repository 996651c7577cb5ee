"""``gossip report --live``: the page on loopback."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_run import MadeUp, write

from gossip.errors import ConfigError
from gossip.launch.report.html import live, page
from gossip.launch.report.loopback import LoopbackServer


@pytest.fixture
def made() -> list[str]:
    """The nonces with which a page was made."""
    return []


@pytest.fixture
def server(made: list[str]) -> Iterator[LoopbackServer]:
    def make(nonce: str) -> str:
        made.append(nonce)
        return f"page {len(made)}"

    with LoopbackServer("/", "text/html", live.Latest(make).page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: LoopbackServer, path: str = "/", host: str = "") -> tuple[int, str]:
    address = server.server_address
    connection = http.client.HTTPConnection(str(address[0]), int(address[1]), timeout=10)
    headers = {"Host": host} if host else {}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_listens_on_loopback_only_and_serves_one_page(server: LoopbackServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server) == (200, "page 1")
    assert get(server, "/etc/passwd")[0] == 404
    assert get(server, "/../config.json")[0] == 404


def test_a_page_is_made_once_for_all_who_ask_at_a_time(
    server: LoopbackServer, made: list[str]
) -> None:
    assert {get(server)[1] for _ in range(5)} == {"page 1"}
    assert len(made) == 1


def test_a_name_of_somebody_else_that_leads_here_is_refused(
    server: LoopbackServer, made: list[str]
) -> None:
    port = server.server_address[1]
    assert get(server, host=f"evil.example:{port}")[0] == 403
    assert get(server, host="127.0.0.1:1")[0] == 403
    assert made == []
    assert get(server, host=f"localhost:{port}")[0] == 200


def test_a_run_that_cannot_be_read_any_more_is_an_answer(made: list[str]) -> None:
    def make(nonce: str) -> str:
        raise ConfigError("it is gone")

    with LoopbackServer("/", "text/html", live.Latest(make).page, 0) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert get(server) == (500, "the run cannot be read: it is gone\n")
        thread.join()


def test_a_port_that_is_taken_is_said(server: LoopbackServer) -> None:
    with pytest.raises(ConfigError, match="cannot serve the report on port"):
        live.serve(lambda nonce: "", int(server.server_address[1]))


def test_the_live_page_has_one_script_with_its_nonce_and_may_ask_only_its_server(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    write(MadeUp(rounds=30, peers=3, pace=10.0), folder)
    text = page.render(page.make([folder]), live_s=3.0, nonce="abc")
    assert text.count("<script") == 1
    assert '<script nonce="abc">' in text
    assert "script-src 'nonce-abc'; connect-src 'self'" in text
    assert "const every = 3000;" in text
    assert 'id="pause"' in text
