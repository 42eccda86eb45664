"""Hostile chat templates end with a clear error, in bounded time and memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from slipstream.errors import SlipstreamError, UsageError
from slipstream.models.text.chat_template import ChatTemplate
from slipstream.models.text.template_process import TemplateProcess, renderer

MESSAGES = [{"role": "user", "content": "Hi"}]
GREETING = "{{ messages[0].content }}!"
LIMIT_S = 0.6  # ten million characters took 0.3 s on a slow core

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits for a process")


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess(cpu_limit_s=LIMIT_S)
    yield made
    made.stop()


@pytest.mark.parametrize(("known", "rendered"), [("system", "system: x"), ("developer", "developer: x")])
def test_a_developer_is_the_system_where_a_template_does_not_know_it(known: str, rendered: str) -> None:
    source = f"{{% for m in messages if m.role == '{known}' %}}{{{{ m.role }}}}: {{{{ m.content }}}}{{% endfor %}}"
    template = ChatTemplate(source, "", "")
    assert template.render([{"role": "developer", "content": "x"}], add_generation_prompt=False) == rendered


def render(process: TemplateProcess, source: str) -> str:
    return process.render(source, {"messages": MESSAGES})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "CPU time"),
        ("{% for i in 'abcdefghij' recursive %}{{ loop('abcdefghij') }}{% endfor %}", "recursion"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}", "CPU time"),
        ("{{ 'a' * 10**9 }}", "512 MB"),
        ("{{ 'a' * 10**7 }}", "10000000 characters"),
        ("{{ 9 ** (9 ** 9) }}", "CPU time"),
        ("{{ '%1000000000d' % 5 }}", "512 MB"),
        ("{{ 'a' | center(10**10) }}", "512 MB"),
        ("{{ [0] * 10**9 }}", "512 MB"),
        ("{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "stopped"),
        (
            "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
            "stopped",
        ),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
        ("{{ raise_exception('x' * 10**6) }}", "x" * 400),
    ],
)
def test_a_hostile_template_ends_with_a_clear_error(process: TemplateProcess, source: str, says: str) -> None:
    before = _child_seconds()
    with pytest.raises(UsageError, match=says) as caught:
        render(process, source)
    assert "--raw" in str(caught.value) and len(str(caught.value)) < 1000
    assert render(process, GREETING) == "Hi!"  # the next one is not hurt
    process.stop()
    assert _child_seconds() - before < LIMIT_S + 1.0  # and starting Python twice


def _child_seconds() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_limit_is_for_one_rendering_not_for_all(process: TemplateProcess) -> None:
    busy = "{% for i in range(99999) %}{% endfor %}"
    render(process, busy)
    child = process._child
    while _seconds_of(child.pid) < 2 * LIMIT_S:
        render(process, busy)
    assert process._child is child


def _seconds_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_long_message_is_no_attack(process: TemplateProcess) -> None:
    content = "word " * 400_000
    assert process.render(GREETING, {"messages": [{"role": "user", "content": content}]}) == content + "!"


def test_any_text_comes_back_as_it_was(process: TemplateProcess) -> None:
    content = 'é\u2028\u0085\r\n\0日本🎉 "quoted" \\n {{ x }} \ud800'
    assert process.render(GREETING, {"messages": [{"role": "user", "content": content}]}) == content + "!"


def test_values_that_are_not_json_are_a_usage_error(process: TemplateProcess) -> None:
    with pytest.raises(UsageError, match="bytes"):
        process.render(GREETING, {"messages": [{"role": "user", "content": "x", "image": b"png"}]})


def test_many_threads(process: TemplateProcess) -> None:
    wrong: list[str] = []

    def ask(name: str) -> None:
        for _ in range(20):
            text = process.render("{{ name }}", {"name": name})
            if text != name:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_killed_child_is_replaced(process: TemplateProcess) -> None:
    assert render(process, GREETING) == "Hi!"
    os.kill(process._child.pid, signal.SIGKILL)
    process._child.wait()
    assert render(process, GREETING) == "Hi!"


def test_an_interrupted_rendering_leaves_no_answer_behind(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert render(process, GREETING) == "Hi!"

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process._child, "stdout", type("Stdout", (), {"readline": staticmethod(interrupt)}))
        patch.setattr(process._child, "communicate", lambda: None)
        with pytest.raises(KeyboardInterrupt):
            render(process, "the answer that nobody read")
    assert render(process, GREETING) == "Hi!"


def test_a_fork_has_a_child_of_its_own() -> None:
    assert render(renderer, GREETING) == "Hi!"
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_render_in_fork) not in (None, renderer._child.pid)
    assert render(renderer, GREETING) == "Hi!"


def _render_in_fork() -> int | None:
    """The number of its child, if that answers."""
    return renderer._child.pid if render(renderer, GREETING) == "Hi!" else None


def test_a_python_that_cannot_be_started(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SlipstreamError, match="did not start"):
        render(process, GREETING)
