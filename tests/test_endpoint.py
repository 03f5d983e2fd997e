"""Evaluating a served model, against a server of our own that behaves well or badly."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from chat_server import HANG, HANG_UP, Knowing, Page, error, said, serving

from bmrl import run as runs
from bmrl import target as targets
from bmrl.chat import rules
from bmrl.cli import main
from bmrl.endpoint import Endpoint
from bmrl.endpoint.answers import Answer, Fault, read
from bmrl.envs import instructions, make
from bmrl.errors import BmrlError

Run = Callable[..., tuple[int, str, str]]
TASKS = make("alfworld", source="embedded").tasks("valid_seen")
# Requests that the first games take when they are played by their plans.
FIRST, SECOND, THIRD = (len(task.plan) for task in TASKS[:3])


@pytest.fixture(scope="module")
def knowing() -> Knowing:
    return Knowing(tasks=10)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


def command(url: str, *more: str, tasks: int = 3, concurrency: int = 1) -> list[str]:
    line = ["eval", "--endpoint", url, "--model", "wise", "--tasks", str(tasks), "--concurrency", str(concurrency)]
    return [*line, "--budget", "30", *more]


def evaluate(url: str, out: Path, *, tasks: int = 3, budgets: tuple[int, ...] = (4, 30), **settings: Any) -> Any:
    """As the command does, with waits too short for the command line."""
    found = targets.find(None, "last", served="wise")
    options = {"split": None, "seeds": [0], "announce": "none", "temperature": 0.0, **settings.pop("options", {})}
    endpoint = Endpoint(**{"url": url, "model": "wise", "first_wait_s": 0.001, "concurrency": 1, **settings})
    return runs.evaluate_endpoint(found, endpoint, budgets=budgets, tasks=tasks, out=out, **options)


def without_cost(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("cost", "endpoint")}


@pytest.fixture(scope="module")
def whole(knowing: Knowing, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    """An undisturbed evaluation of what `command` asks for: the result, and the file of episodes."""
    folder = tmp_path_factory.mktemp("whole")
    with serving(knowing) as server:
        answer = evaluate(server.url, folder, budgets=(30,), options={"seeds": [], "temperature": None})
    (lines,) = folder.glob("*.jsonl")
    return without_cost(answer), lines.read_bytes()


@pytest.mark.parametrize("announce", ["none", "total", "remaining"])
def test_what_plays_by_the_plans_reaches_the_ceiling(knowing: Knowing, tmp_path: Path, announce: str) -> None:
    with serving(knowing) as server:
        answer = evaluate(server.url, tmp_path, tasks=10, concurrency=4, options={"announce": announce})
    assert [point["success"] for point in answer["budgets"]] == [point["ceiling"] for point in answer["budgets"]]
    plans = [len(task.plan) for task in TASKS[:10]]
    # One pass at 30 turns; or a play of each budget, which 4 turns cut off.
    told = sum(min(plan, 4) for plan in plans) if announce != "none" else 0
    assert answer["cost"]["requests"] == len(server.bodies) == sum(plans) + told
    assert answer["cost"]["completion_tokens"] == 3 * len(server.bodies)
    words = [sum(len(m["content"].split()) for m in body["messages"]) for body in server.bodies]
    assert answer["cost"]["prompt_tokens"] == sum(words)
    (lines,) = tmp_path.glob("*.jsonl")
    episodes = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [e["task_id"] for e in episodes if e["budget"] == 30] == [task.task_id for task in TASKS[:10]]
    assert {turn["action_tokens"] for e in episodes for turn in e["turns"]} == {0}
    assert all(turn["valid"] for e in episodes for turn in e["turns"])


def test_the_conversation_is_that_of_a_local_chat_model(knowing: Knowing, tmp_path: Path) -> None:
    options = {"announce": "remaining", "temperature": 0.5}
    with serving(knowing) as server:
        evaluate(server.url, tmp_path, tasks=1, budgets=(30,), fields={"top_p": 0.9, "seed": None}, options=options)
    env = make("alfworld", source="embedded")
    told = rules(instructions=instructions("alfworld"))
    talk = [{"role": "user", "content": f"{told}\n\n{env.reset(TASKS[0])}\nTurns left: 30."}]
    for turn, (body, action) in enumerate(zip(server.bodies, TASKS[0].plan, strict=True)):
        assert body == {"model": "wise", "messages": talk, "temperature": 0.5, "max_tokens": 32, "top_p": 0.9}
        talk.append({"role": "assistant", "content": f"<action>{action}</action>"})
        talk.append({"role": "user", "content": f"{env.step(action).observation}\nTurns left: {29 - turn}."})
    assert server.headers[0]["path"] == "/v1/chat/completions"
    assert "Authorization" not in server.headers[0]


def test_every_turn_has_a_seed_of_its_own_and_the_same_again(knowing: Knowing, tmp_path: Path) -> None:
    seeds = []
    for folder, concurrency in (("a", 1), ("b", 3)):
        with serving(knowing) as server:
            evaluate(server.url, tmp_path / folder, concurrency=concurrency, options={"seeds": [0, 1]})
        seeds.append(sorted(body["seed"] for body in server.bodies))
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(seeds[0]) == 2 * (FIRST + SECOND + THIRD)


def test_as_many_requests_at_once_as_were_asked_for(knowing: Knowing, tmp_path: Path) -> None:
    with serving(knowing, delay_s=0.05) as server:
        evaluate(server.url, tmp_path, tasks=8, concurrency=3)
    assert server.most == 3


HTML = b"<!doctype html><html><head><title>502 Bad gateway</title></head><body>nginx</body></html>"
FAULTS = {
    "500": (error(500, "boom"), "answers 500 Internal Server Error (boom); lower --concurrency, or come back later"),
    "429": (error(429, "slow down"), "answers 429 Too Many Requests (slow down); lower --concurrency"),
    "429 for an hour": (
        error(429, "quota", **{"Retry-After": "3600"}),
        "answers 429 Too Many Requests (quota) and asks to wait 3,600 s; come back then",
    ),
    "404": (error(404, "no model `wise`"), "answers 404 Not Found (no model `wise`); check --model, and --endpoint"),
    "401": (error(401, "wrong key"), "answers 401 Unauthorized (wrong key); --key-env names the environment variable"),
    "400": (error(400, "max_tokens is gone"), "answers 400 Bad Request (max_tokens is gone); --field changes what"),
    "moved": (Page(301, b"", {"Location": "/v2"}), "answers 301 Moved Permanently; it sends elsewhere"),
    "HTML error": (Page(502, HTML), "answers 502 Bad Gateway (502 Bad gateway); lower"),
    "HTML": (Page(200, HTML), "answers HTML (502 Bad gateway); check --endpoint, which mostly ends in /v1"),
    "half": (Page(200, said("<action>look</action>").body[:-20]), "answers half a JSON; check what is between"),
    "words": (Page(200, b"hello\x1b[31m\nthere"), "answers no JSON (hello [31m there); check --endpoint"),
    "empty": (Page(200, b""), "answers nothing, an empty page; check --endpoint"),
    "nothing": (HANG, "no answer within 0.5 s; raise --timeout or lower --concurrency"),
    "hung up": (HANG_UP, "broke off (Server disconnected without sending a response.); check that the server runs"),
    "no choices": (said("", choices=[]), "answers without a choice to read; check --model and --field"),
    "no message": (said("", choices=[{"index": 0}]), "answers without a choice to read"),
    "a number": (Page(200, b"7"), "answers with an error (7)"),
    "an error with 200": (Page(200, b'{"error": {"message": "no such model"}}'), "an error (no such model); check"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_what_was_played_is_kept_and_the_same_command_goes_on(
    knowing: Knowing, whole: tuple[dict[str, Any], bytes], run: Run, name: str
) -> None:
    fault, words = FAULTS[name]
    broken = True

    def behave(number: int, body: dict[str, Any]) -> Any:
        return fault if broken and number > FIRST else knowing(number, body)

    with serving(behave) as server:
        line = command(server.url, "--timeout", "0.5", "--retries", "0", "--out", "out")
        code, out, err = run(*line)
        assert (code, out) == (1, "")
        (told,) = [text for text in err.splitlines() if text.startswith("bmrl: ")]
        assert told.startswith(f"bmrl: {server.url}: ")
        assert words in told
        (kept,) = Path("out").iterdir()
        how = f"1 of 3 tasks (1 of 3 episodes) were played, kept in {kept}; the same command goes on from there"
        assert told.endswith(how)
        assert f"cost: {FIRST + 2} requests, 0 of them retries" in err
        assert "Traceback" not in err and "\x1b" not in err
        broken, before = False, len(server.bodies)
        # Half a second is for the server that says nothing; on a busy machine a sound one may need more.
        code, out, err = run(*command(server.url, "--out", "out", "--json"))
        assert code == 0
        assert "going on: 1 of 3 tasks" in err
        # The second game is played from its beginning.
        assert len(server.bodies) - before == SECOND + THIRD
        answer = json.loads(out)
        assert answer["tasks"] == 3
        assert answer["cost"]["requests"] == len(server.bodies)
    assert sorted(path.suffix for path in Path("out").iterdir()) == [".json", ".jsonl"]
    assert without_cost(answer) == whole[0]
    (lines,) = Path("out").glob("*.jsonl")
    assert lines.read_bytes() == whole[1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/v1", "cannot be reached (connection refused); check --endpoint, and that the server runs"),
        ("http://nowhere.invalid/v1", "http://nowhere.invalid/v1: cannot be reached ("),
    ],
)
def test_a_server_that_is_not_there_is_told_at_once(run: Run, url: str, words: str) -> None:
    code, out, err = run(*command(url))
    assert (code, out) == (1, "")
    (told,) = [text for text in err.splitlines() if text.startswith("bmrl: ")]
    assert words in told
    assert told.endswith(
        "; 0 of 3 tasks (0 of 3 episodes) were played, nothing to keep; the same command goes on from there"
    )
    assert "cost: 1 requests, 0 of them retries" in err
    assert list(Path("eval").iterdir()) == []


def failing(fault: Any, numbers: set[int], knowing: Knowing) -> Callable[[int, dict[str, Any]], Any]:
    return lambda number, body: fault if number in numbers else knowing(number, body)


@pytest.mark.parametrize("name", ["500", "429", "HTML error", "HTML", "half", "empty", "nothing", "hung up"])
def test_what_passes_is_tried_again(knowing: Knowing, tmp_path: Path, name: str) -> None:
    with serving(failing(FAULTS[name][0], {2, 3}, knowing)) as server:
        answer = evaluate(server.url, tmp_path, timeout_s=0.5)
    assert answer["cost"]["retried"] == 2
    assert answer["cost"]["requests"] == FIRST + SECOND + THIRD + 2
    assert answer["budgets"][-1]["success"] == 1.0
    assert server.bodies[2] == server.bodies[3] == server.bodies[4]


@pytest.mark.parametrize("name", ["400", "401", "404", "moved", "429 for an hour"])
def test_what_does_not_pass_is_asked_once(knowing: Knowing, tmp_path: Path, name: str) -> None:
    with serving(failing(FAULTS[name][0], {2}, knowing)) as server, pytest.raises(BmrlError):
        evaluate(server.url, tmp_path)
    assert len(server.bodies) == 3


def test_a_page_at_the_first_request_is_no_server_to_wait_for(knowing: Knowing, tmp_path: Path) -> None:
    with serving(lambda number, body: FAULTS["HTML"][0]) as server, pytest.raises(BmrlError, match="answers HTML"):
        evaluate(server.url, tmp_path)
    assert len(server.bodies) == 1


def test_tries_are_bounded_and_counted(knowing: Knowing, tmp_path: Path) -> None:
    told = pytest.raises(BmrlError, match=r"503 Service Unavailable \(loading\) 4 times; ")
    with serving(lambda number, body: error(503, "loading")) as server, told:
        evaluate(server.url, tmp_path, retries=3)
    assert len(server.bodies) == 4


def test_waits_double_and_jitter(knowing: Knowing, tmp_path: Path) -> None:
    with serving(failing(error(500, ""), {0, 1, 2}, knowing)) as server:
        evaluate(server.url, tmp_path, tasks=1, first_wait_s=0.1)
    gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)][:3]
    # Means 0.1, 0.2 and 0.4 s, each between half and one and a half; above that the machine may be slow.
    assert all(gap >= 0.5 * mean for gap, mean in zip(gaps, (0.1, 0.2, 0.4), strict=True))


@pytest.mark.parametrize("dated", [False, True])
def test_retry_after_is_honoured(knowing: Knowing, tmp_path: Path, dated: bool) -> None:
    def behave(number: int, body: dict[str, Any]) -> Page:
        # A date has whole seconds: one of the two may be gone.
        header = formatdate(time.time() + 2, usegmt=True) if dated else "1"
        return error(429, "", **{"Retry-After": header}) if number == 1 else knowing(number, body)

    with serving(behave) as server:
        evaluate(server.url, tmp_path, tasks=1)
    assert server.times[2] - server.times[1] >= 0.95


@pytest.mark.parametrize("limit", [1, FIRST, FIRST + SECOND + 1])
def test_no_request_more_than_was_allowed(knowing: Knowing, run: Run, limit: int) -> None:
    with serving(knowing, delay_s=0.01) as server:
        line = command(server.url, "--max-requests", str(limit), concurrency=1 if limit > FIRST + SECOND else 2)
        code, out, err = run(*line)
        assert (code, out) == (1, "")
        assert f"bmrl: --max-requests {limit}: they are spent; " in err
        assert len(server.bodies) == limit
        if limit > FIRST + SECOND:  # the first two games are kept: the third fits into as many again
            code, out, err = run(*line, "--json")
            assert code == 0
            assert json.loads(out)["cost"]["requests"] == len(server.bodies)


def test_no_token_more_than_was_allowed(knowing: Knowing, run: Run) -> None:
    with serving(knowing, delay_s=0.01) as server:
        code, out, err = run(*command(server.url, "--max-tokens", "3000", concurrency=2))
    assert (code, out) == (1, "")
    assert "bmrl: --max-tokens 3,000: " in err and " are spent, the next request may take " in err
    usages = [json.loads(page.body)["usage"] for page in server.answered.values()]
    spent = sum(usage["total_tokens"] for usage in usages)
    assert 2000 < spent <= 3000  # all of it would be 3,144
    assert f"{spent:,} are spent" in err


def test_a_server_that_does_not_count_cannot_be_held_to_tokens(run: Run) -> None:
    with serving(lambda number, body: said("<action>look</action>", usage=None)) as server:
        code, _, err = run(*command(server.url, "--max-tokens", "90000"))
        assert code == 1
        assert "--max-tokens: the server does not count tokens; limit --max-requests instead" in err
        code, out, err = run(*command(server.url, "--json", "--budget", "30", tasks=1))
    assert code == 0 and json.loads(out)["cost"]["uncounted"] == 30
    assert "0 prompt and 0 completion tokens (30 answers without a count)" in err


def test_requests_of_a_game_cut_short_count_also_without_tokens(run: Run) -> None:
    broken = True

    def behave(number: int, body: dict[str, Any]) -> Any:
        # The first game takes all its 30 turns; four turns of the second are answered.
        return error(500, "down") if broken and number >= 34 else said("<action>look</action>", usage=None)

    with serving(behave) as server:
        line = command(server.url, "--retries", "0", "--out", "out", "--json", tasks=2)
        assert run(*line)[0] == 1
        before = len(server.bodies)
        broken = False
        code, out, _ = run(*line)
    assert code == 0 and len(server.bodies) == before + 30
    cost = json.loads(out)["cost"]
    assert (cost["requests"], cost["uncounted"]) == (before + 30, 34 + 30)


@pytest.mark.parametrize(
    ("page", "note"),
    [
        (said("<action>go to", finish="length"), "note: 3 answers were cut off at --turn-tokens and count as no"),
        (said("<action>look</action>", finish="length"), "note: 3 answers were cut off at --turn-tokens"),
        (said(None), "note: 3 answers had no text and count as no action"),
        (said("<think>hm</think> I do not know"), ""),
    ],
)
def test_words_without_an_action_are_turns_that_did_nothing(run: Run, page: Page, note: str) -> None:
    with serving(lambda number, body: page) as server:
        code, _, err = run(*command(server.url, tasks=1)[:-2], "--budget", "3")
    assert code == 0
    assert note in err
    assert ("note: " in err) == bool(note)
    (lines,) = Path("eval").glob("*.jsonl")
    episode = json.loads(lines.read_text())
    assert [(turn["action"], turn["valid"]) for turn in episode["turns"]] == [("", False)] * 3
    assert episode["end_reason"] == "budget"
    texts = [message["content"] for message in server.bodies[-1]["messages"] if message["role"] == "assistant"]
    assert texts == [json.loads(page.body)["choices"][0]["message"]["content"] or ""] * 2


@pytest.mark.parametrize(
    "page",
    [
        Page(400, b'{"error": {"code": "context_length_exceeded", "message": "too long"}}'),
        Page(400, b'{"error": {"type": "exceed_context_size_error", "message": "exceeds the available context size"}}'),
        Page(400, b'{"object": "error", "message": "This model\'s maximum context length is 64 tokens."}'),
    ],
)
def test_a_conversation_that_does_not_fit_ends_for_the_context(knowing: Knowing, tmp_path: Path, page: Page) -> None:
    def behave(number: int, body: dict[str, Any]) -> Page:
        return page if len(body["messages"]) > 3 else knowing(number, body)

    with serving(behave) as server:
        answer = evaluate(server.url, tmp_path, budgets=(2, 30))
    assert [point["context"] for point in answer["budgets"]] == [0.0, 1.0]
    (lines,) = tmp_path.glob("*.jsonl")
    episodes = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(e["end_reason"], len(e["turns"])) for e in episodes] == [("context", 2)] * 3


def test_what_was_evaluated_costs_nothing_again_and_other_settings_share_nothing(knowing: Knowing, run: Run) -> None:
    with serving(knowing) as server:
        first = run(*command(server.url, "--json", tasks=1))
        asked = len(server.bodies)
        code, out, err = run(*command(server.url, "--json", tasks=1))
        assert (code, out, len(server.bodies)) == (0, first[1], asked)
        assert "evaluated before, nothing is asked; remove it to play again" in err
        for more in (
            ("--temperature", "0"),
            ("--turn-tokens", "64"),
            ("--announce", "total"),
            ("--field", "top_p=0.5"),
            ("--seed", "3"),
            ("--budget", "4"),
            ("--split", "valid_unseen"),
            ("--model", "other"),
        ):
            before = len(server.bodies)
            assert run(*command(server.url, *more, tasks=1))[0] == 0
            assert len(server.bodies) > before
    assert len(list(Path("eval").glob("*.json"))) == 9


def test_kill_and_the_same_command_equal_an_undisturbed_evaluation(knowing: Knowing, run: Run, tmp_path: Path) -> None:
    with serving(knowing, delay_s=0.05) as server:
        line = command(server.url, "--json", tasks=10, concurrency=3)
        process = subprocess.Popen(
            [sys.executable, "-m", "bmrl", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        # The file's first line says of which settings the others are.
        while b"".join(path.read_bytes() for path in Path("eval").glob("*.partial.jsonl")).count(b"\n") < 4:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        assert process.communicate()[0] == b""
        (path,) = Path("eval").iterdir()
        kept = [json.loads(text)["episode"]["task_id"] for text in path.read_text().splitlines()[1:]]
        assert 3 <= len(kept) < 10
        with path.open("a") as file:
            file.write('{"cost": {"requ')  # as a kill in the middle of a line leaves it
        server.bodies.clear()
        code, out, _ = run(*line)
        assert code == 0
        missing = [task for task in TASKS[:10] if task.task_id not in kept]
        assert len(server.bodies) == sum(len(task.plan) for task in missing)
        assert [path.suffix for path in sorted(Path("eval").iterdir())] == [".json", ".jsonl"]
        whole = run(*line, "--out", "whole")[1]
    assert without_cost(json.loads(out)) == without_cost(json.loads(whole))
    one, other = (next(Path(folder).glob("*.jsonl")) for folder in ("eval", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_an_interrupt_ends_it_at_once_though_the_server_never_answers(knowing: Knowing, tmp_path: Path) -> None:
    behave = failing(HANG, set(range(FIRST, 1000)), knowing)
    with serving(behave) as server:
        line = [sys.executable, "-m", "bmrl", *command(server.url)]
        process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(server.bodies) <= FIRST:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("bmrl: stopped by SIGINT; 1 of 3 tasks (1 of 3 episodes) were played, kept")


def test_a_damaged_line_is_named(knowing: Knowing, run: Run) -> None:
    with serving(failing(error(401, ""), set(range(FIRST + SECOND, 1000)), knowing)) as server:
        line = command(server.url)
        run(*line)
        (path,) = Path("eval").iterdir()
        whole = path.read_text().splitlines()
        path.write_text("\n".join([whole[0], whole[1][:-9], whole[2]]) + "\n")
        code, _, err = run(*line)
        assert code == 1
        assert f"bmrl: {path}:2: damaged; remove the line to play its episode again" in err
        path.write_text("\n".join([whole[0].replace("wise", "other"), *whole[1:]]) + "\n")
        assert f"{path}: of other settings than those asked for; move it elsewhere" in run(*line)[2]


def test_two_at_the_same_evaluation_do_not_mix(knowing: Knowing, tmp_path: Path, run: Run) -> None:
    with serving(failing(HANG, set(range(FIRST, 1000)), knowing)) as server:
        line = command(server.url)
        other = subprocess.Popen([sys.executable, "-m", "bmrl", *line], cwd=tmp_path, stderr=subprocess.DEVNULL)
        while len(server.bodies) <= FIRST:
            time.sleep(0.01)
        code, _, err = run(*line)
        other.kill()
        other.wait()
    assert code == 1
    assert "bmrl: another process adds to eval/" in err


KEY = "sk-very-secret-123"


@pytest.mark.parametrize("status", [200, 401, 500])
def test_the_key_is_sent_and_never_shown_or_written(run: Run, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("THEIR_KEY", f" {KEY}\n")
    good = said("<action>look</action>")
    page = good if status == 200 else error(status, f"Incorrect API key provided: {KEY}, {KEY}")
    with serving(lambda number, body: page if number else good) as server:
        line = command(server.url, "--key-env", "THEIR_KEY", "--retries", "1", tasks=1)
        code, out, err = run("--debug", *line)
    assert code == (0 if status == 200 else 1)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    files = [path.read_text() for path in Path.cwd().rglob("*") if path.is_file()]
    assert files or status != 200
    for text in (out, err, *files, repr(Endpoint("http://x/v1", "m", key=KEY))):
        assert KEY not in text


WRONG = [
    (["--model", "m"], "--model goes with --endpoint URL"),
    (["--max-tokens", "5"], "--max-tokens goes with --endpoint URL"),
    (["--field", "a=1"], "--field goes with --endpoint URL"),
    (["--endpoint", "http://x/v1"], "--endpoint: say which of its models with --model NAME"),
    (["--endpoint", "localhost:8000"], "invalid value for '--endpoint': no URL such as http://localhost:8000/v1"),
    (["--endpoint", "http://x:y/v1", "--model", "m"], "invalid value for '--endpoint': no URL such as"),
    (["--endpoint", f"https://me:{KEY}@x/v1", "--model", "m"], "'--endpoint': a URL without user, password"),
    (["--endpoint", f"https://x/v1?key={KEY}", "--model", "m"], "the key comes through --key-env"),
    (["--endpoint", "http://x/v1", "--model", "m", "--key-env", KEY], "'--key-env': there is no such environment"),
    (["--endpoint", "http://x/v1", "--model", "m", "--field", "a"], "'--field': 'a' is not NAME=VALUE"),
    (["--endpoint", "http://x/v1", "--model", "m", "--field", "n=2"], "'--field': n is not for changing"),
    (["--endpoint", "http://x/v1", "--model", "m", "--checkpoint", "best"], "--checkpoint: a served model has none"),
    (["pocket", "--endpoint", "http://x/v1", "--model", "m"], "pocket: with --endpoint, TARGET is a recipe or a run"),
    (["--endpoint", "http://x/v1", "--model", "m", "--timeout", "0"], "invalid value for '--timeout': 0"),
    (["expert", "--turn-tokens", "5"], "--turn-tokens: expert is no model, it samples nothing"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_wrong_use_is_one_line_and_repeats_no_key(run: Run, arguments: list[str], words: str) -> None:
    code, out, err = run("eval", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert KEY not in err


def test_a_recipe_before_an_endpoint_gives_the_settings(knowing: Knowing, run: Run) -> None:
    assert run("new", "mine", "--from", "textworld_mix", "--out", "mine.yaml")[0] == 0
    text = Path("mine.yaml").read_text()
    Path("mine.yaml").write_text(text.replace("turn_tokens: ", "turn_tokens: 1"))
    with serving(lambda number, body: said("<action>look</action>")) as server:
        code, out, err = run(
            "eval", "mine.yaml", "--env", "alfworld", "--endpoint", server.url, "--model", "m", "--tasks", "1", "--json"
        )
    assert code == 0, err
    assert server.bodies[0]["max_tokens"] >= 100
    assert json.loads(out)["target"] == "m"


def test_read() -> None:
    body = said("hi", usage=(5, 2)).body
    assert read(200, {}, body) == Answer("hi", True, 5, 2)
    assert read(200, {}, said("hi", finish="content_filter", usage=None).body) == Answer("hi", False)
    parts = json.loads(body)
    parts["choices"][0]["message"]["content"] = [{"type": "text", "text": "a"}, {"type": "text", "text": "\ud800"}]
    assert read(200, {}, json.dumps(parts).encode()).text == "a?"
    parts["usage"] = {"prompt_tokens": "many"}
    assert read(200, {}, json.dumps(parts).encode()).prompt_tokens is None
    with pytest.raises(Fault, match=r"answers 599 \(x{199}…\)"):
        read(599, {}, b"x" * 1000)
    with pytest.raises(Fault, match=r"answers 422 Unprocessable \w+ \(field required\)"):
        read(422, {}, b'{"detail": [{"loc": ["body"], "msg": "field required"}]}')
    for header, wait in {"2.5": 2.5, "-1": 0.0, "soon": None, "Wed, 21 Oct 2015 07:28:00 GMT": 0.0}.items():
        with pytest.raises(Fault) as caught:
            read(503, {"retry-after": header}, b"")
        assert caught.value.wait_s == wait
