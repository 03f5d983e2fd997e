"""What `bmrl doctor` says, and that it says what to do. The machines are ours: a fake driver on PATH, fake packages."""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from bmrl.check import INSTEAD
from bmrl.doctor import ask, machine
from bmrl.doctor.cards import DRIVERS, driver, examine_cards, undisturbed
from bmrl.doctor.examination import examine
from bmrl.doctor.finding import Finding
from bmrl.doctor.fit import examine_fit
from bmrl.doctor.libraries import examine_bitsandbytes, examine_hub, examine_unsloth
from bmrl.doctor.packages import examine_packages, range_of
from bmrl.files import data_path, recipes_path
from bmrl.recipe import load

GIB = 2**30
CPU = {"version": "2.13.0+cpu", "cuda": None, "available": False, "cards": [], "warning": ""}
CUDA = {"version": "2.13.0", "cuda": "12.8", "available": False, "cards": [], "warning": "driver too old (found 11040)"}


def lines(findings) -> list[str]:
    found = list(findings)
    for each in found:
        assert "\n" not in each.line
        assert each.state != "problem" or each.remedy or ": " in each.text, "a problem without a remedy"
        assert each.state == "problem" or not each.blocks
    return [" ".join(each.line.split()) for each in found]


def card(**changes):
    found = {"name": "RTX 4090", "capability": [8, 9], "free": 23 * GIB, "total": 24 * GIB, "error": "", **changes}
    return {**CUDA, "available": True, "cards": [found]}


# --- packages -------------------------------------------------------------------------------------------------------


def install(folder: Path, name: str, version: str, *more: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more])
    (info / "METADATA").write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    install(
        tmp_path,
        "bmrl",
        "9.9",
        "Provides-Extra: quick",
        "Provides-Extra: dev",
        "Requires-Dist: fine<3,>=1",
        "Requires-Dist: old<3,>=1",
        "Requires-Dist: odd>=1",
        "Requires-Dist: absent[more]<3,>=1",
        "Requires-Dist: elsewhere; sys_platform == 'nowhere'",
        "Requires-Dist: wheels<2; extra == 'quick'",
        "Requires-Dist: checker<2; extra == 'dev'",
    )
    for name, version in (("fine", "2.1+cpu"), ("old", "0.9"), ("odd", "unknown")):
        install(tmp_path, name, version)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_packages_are_compared_with_what_the_installed_bmrl_asks_for(installed):
    assert lines(examine_packages()) == [
        "ok packages fine 2.1+cpu (tested with <3,>=1)",
        "problem packages old 0.9 is out of range (tested with <3,>=1); pip install 'old<3,>=1'",
        "problem packages odd unknown is out of range (tested with >=1); pip install 'odd>=1'",
        "problem packages absent is not installed; pip install 'absent[more]<3,>=1'",
        "note packages wheels is not installed: pip install 'bmrl[quick]' (tested with <2)",
    ]
    assert [each.blocks for each in examine_packages()] == [False, False, False, True, False]
    assert (range_of("old"), range_of("other")) == ("old<3,>=1", "other")


def test_a_clone_that_is_not_installed_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (found,) = lines(examine_packages())
    assert found == "problem packages bmrl is not installed, so that no versions can be compared; pip install -e ."


# --- cards ----------------------------------------------------------------------------------------------------------

HEADER = "| NVIDIA-SMI {0}       Driver Version: {0}      CUDA Version: {1}     |"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a fake nvidia-smi on PATH."""

    def put(gpu: str, *, cuda: str = "12.8", apps: str = "", code: int = 0, knows_capability: bool = True) -> None:
        refuse = "" if knows_capability else 'case "$*" in *compute_cap*) echo "not a valid field"; exit 2;; esac'
        script = f"""#!/bin/sh
{refuse}
case "$*" in
  *query-gpu*) echo "{gpu}";;
  *compute-apps*) printf "{apps}";;
  *) echo "{HEADER.format("x", cuda)}";;
esac
exit {code}
"""
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir(exist_ok=True)
        file.write_text(script)
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def test_a_card_that_works(smi):
    smi("570.10, 24576, 23552, NVIDIA GeForce RTX 4090, 8.9", apps="4711, 512\\n4712, 512\\n")
    assert lines(examine_cards(card(), driver(), needed=True)) == [
        "ok torch 2.13.0, built for CUDA 12.8",
        "ok driver 570.10, serves CUDA up to 12.8",
        "ok card RTX 4090: compute capability 8.9, 23.0 of 24.0 GiB are free",
        "note card 2 programs hold 1.0 GiB of the cards; nvidia-smi lists them",
    ]


def test_what_the_probes_hold_of_a_card_counts_as_free(smi):
    smi("570.10, 24576, 24064, RTX 4090, 8.9")
    (known,) = undisturbed(card(), driver())["cards"]
    assert known["free"] == 23.5 * GIB
    (unknown,) = undisturbed(card(name="RTX 3090"), driver())["cards"]
    assert unknown["free"] == 23 * GIB
    smi("570.10, 24576, 24064, RTX 4090, 8.9\n570.10, 24576, 1024, RTX 4090, 8.9")
    assert undisturbed(card(), driver())["cards"][0]["free"] == 23 * GIB
    assert undisturbed({"error": "x"}, None) == {"error": "x", "cards": []}


def test_no_card_and_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver() is None
    assert lines(examine_cards(CPU, None, needed=False)) == [
        "ok torch 2.13.0+cpu, built for CPUs",
        "note card no NVIDIA GPU is visible; the embedded policy needs none",
    ]


@pytest.mark.parametrize("said", ["garbage", "570.10, 24576", "<html>no, really, not</html>"])
def test_an_answer_that_is_none_is_one_problem(smi, said):
    smi(said)
    found = list(examine_cards(CUDA, driver(), needed=True))
    assert lines(found)[1].startswith("problem driver nvidia-smi fails: it answers with '")
    assert found[1].blocks


def test_a_driver_that_does_not_answer(smi):
    smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    found = list(examine_cards(CUDA, driver(), needed=True))
    assert lines(found)[1].startswith("problem driver nvidia-smi fails: NVIDIA-SMI has failed because")
    assert lines(found)[1].endswith("reinstall the driver, or reboot")
    assert found[1].blocks


@pytest.mark.parametrize(
    ("version", "cuda", "other"),
    [
        ("470.82.01", "11.4", ", or the torch build for CUDA 11.8"),
        ("525.60.12", "11.8", ", or the torch build for CUDA 11.8"),
        ("390.157", "9.1", ""),  # no torch for that
    ],
)
def test_an_old_driver_is_told_with_the_driver_or_the_build_to_take(smi, version, cuda, other):
    smi(f"{version}, 24576, 24000, NVIDIA GeForce RTX 3090", cuda=cuda, knows_capability=False)
    found = list(examine_cards(CUDA, driver(), needed=True))
    assert lines(found)[2:] == [
        f"problem driver {version} is too old for torch's CUDA 12.8; install driver 525.60.13 or newer{other}",
        "ok card NVIDIA GeForce RTX 3090: 23.4 of 24.0 GiB are free, which torch does not use",
    ]
    assert found[2].blocks
    assert not list(examine_cards(CUDA, driver(), needed=False))[2].blocks


def test_a_torch_for_cpus_beside_a_card(smi):
    # The newest build that is not newer than what the driver serves.
    for cuda, take in (("12.5", "the build for CUDA 12.4"), ("13.1", "13.0"), ("10.2", "a newer driver, and a build")):
        smi("555.42, 24576, 24000, NVIDIA GeForce RTX 4090, 8.9", cuda=cuda)
        line = lines(examine_cards(CPU, driver(), needed=True))[2]
        assert line.startswith("problem torch a build for CPUs, though there is a card; take ")
        assert take in line


def test_a_card_that_is_hidden(smi):
    smi(f"{DRIVERS[12]}, 24576, 24000, NVIDIA GeForce RTX 4090, 8.9")
    line = lines(examine_cards(CUDA, driver(), needed=True))[2]
    assert line == (
        "problem torch it sees no card (driver too old (found 11040)); "
        "unset CUDA_VISIBLE_DEVICES if it hides the card, or reboot"
    )


def test_cards_that_are_old_small_or_unknown_to_torch():
    found = lines(examine_cards(card(name="RTX 2080", capability=[7, 5], total=8 * GIB), None, needed=True))
    assert found[2:] == [
        "note card RTX 2080 has no bfloat16, which needs compute capability 8.0; "
        "recipes that say so need model.dtype=float32",
        "note card RTX 2080: 8 GB; bmrl check RECIPE --vram 8 says what to change",
    ]
    old = list(examine_cards(card(name="RTX 2080", capability=[7, 5]), None, needed=True, bfloat16=True))[2]
    assert old.blocks
    assert lines([old])[0].endswith("capability 8.0; set model.dtype=float32, or take a newer card")
    (found,) = list(examine_cards(card(error="no kernel image is available"), None, needed=True))[1:]
    assert found.blocks
    assert lines([found])[0].startswith(
        "problem card RTX 4090: torch cannot compute on it: no kernel image is available; take a torch build that knows"
    )


def test_a_torch_that_cannot_be_imported_stops_everything():
    (found,) = examine_cards({"error": "ImportError: libtorch.so"}, None, needed=False)
    assert found.blocks
    assert lines([found])[0].startswith("problem torch ImportError: libtorch.so; reinstall it: pip install 'torch<")


# --- probes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes a package that the probes' processes import."""

    def put(name: str, code: str) -> None:
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / f"{name}.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))

    return put


def answer(name: str, patience: float = 60.0):
    with ask.asked([name], {name: patience}) as probes:
        return probes[name].answer()


def test_a_library_that_works_says_its_version(library):
    library("unsloth", "print('Unsloth: patching')\n__version__ = '1.2'\n")
    assert lines(examine_unsloth(answer("unsloth"), needed=True)) == ["ok unsloth 1.2 can be imported"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ImportError('libcuda.so.1\\nis not there')", "ImportError: libcuda.so.1 is not there"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process crashed (SIGSEGV)"),
        ("import os; os._exit(3)", "it ended with code 3"),
        ("import sys; sys.exit('needs a GPU')", "SystemExit: needs a GPU"),
        ("import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_library_that_fails_crashes_or_hangs_is_a_line(library, code, told):
    library("unsloth", code)
    found = list(examine_unsloth(answer("unsloth", 1.0 if "sleep" in code else 60.0), needed=True))
    assert lines(found) == [
        f"problem unsloth cannot be imported: {told}; "
        "pip install 'bmrl[unsloth]' in an environment of its own, or set model.backend=transformers"
    ]
    assert found[0].blocks
    assert not next(examine_unsloth({"error": "x"}, needed=False)).blocks


def test_kernels_of_bitsandbytes():
    good = {"version": "0.50.2", "device": "cuda", "faults": []}
    assert lines(examine_bitsandbytes(good, needed=True)) == [
        "ok bitsandbytes 0.50.2: 4 bit and the 8-bit optimizer run on cuda"
    ]
    for found, told in (
        (
            {**good, "faults": ["nf4: no kernel", "adamw8bit is off by 1"]},
            "its kernels fail on cuda: nf4: no kernel; a",
        ),
        ({"error": "the process crashed (SIGSEGV)"}, "cannot be used: the process crashed (SIGSEGV); pip install"),
    ):
        (finding,) = examine_bitsandbytes(found, needed=True)
        assert told in lines([finding])[0]
        assert lines([finding])[0].endswith("or set model.quantization=none and optimizer.name=adamw")
        assert finding.blocks


def test_kernels_that_compute_something_else_are_seen(library):
    # 4 bit there and back loses everything; the optimizer does nothing.
    library(
        "bitsandbytes",
        """
__version__ = "0"
class functional:
    quantize_4bit = staticmethod(lambda x, **_: (x, None))
    dequantize_4bit = staticmethod(lambda x, _: x * 0)
class optim:
    class AdamW8bit:
        def __init__(self, *_, **__): pass
        def step(self): raise RuntimeError("no kernel")
""",
    )
    assert answer("bitsandbytes")["faults"] == ["nf4 is off by 1", "adamw8bit: no kernel"]


@pytest.mark.skipif(not find_spec("bitsandbytes"), reason="not installed")
def test_the_real_kernels():
    assert answer("bitsandbytes")["faults"] == []


def test_torch_tells_of_itself():
    found = answer("torch")
    assert found["version"]
    assert found["available"] == bool(found["cards"])


# --- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """A hub of ours; answers with the code that it is made with."""
    servers = []

    def serve(code: int) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("code", [200, 401])
def test_a_hub_that_answers(hub, code, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub(code)
    assert lines(examine_hub(answer("hub"), model=None)) == [
        "ok hub the hub of $HF_ENDPOINT answers",
        "ok hub a token is there",
    ]


def test_a_hub_that_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    silent = answer("hub")
    found = lines(examine_hub(silent, model=None))
    assert found[0].startswith("note hub the hub of $HF_ENDPOINT does not answer (")
    assert found[0].endswith("; models must be on this disk")
    assert found[1] == "note hub no token; only gated models need one: hf auth login"
    assert lines(examine_hub(silent, model="a/b"))[0].endswith("; a/b is on this disk, so that is fine")
    assert lines(examine_hub(None, model="a/b"))[0] == (
        "note hub not asked, for HF_HUB_OFFLINE is set; a/b is on this disk, so that is fine"
    )


# --- memory, disk, games --------------------------------------------------------------------------------------------


def test_memory_and_disk(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = lines(machine.examine_machine())
    assert [line.split()[:2] for line in found] == [["ok", "python"], ["ok", "memory"], *[["ok", "disk"]] * 3]
    monkeypatch.setattr(machine, "free_memory_gb", lambda: 1.0)
    monkeypatch.setattr(machine, "free_disk_gb", lambda _: 0.25)
    monkeypatch.setattr(machine, "PYTHON", (3, 99))
    python, memory, *disks = machine.examine_machine()
    assert python.blocks
    assert lines([memory])[0].endswith("GiB are free; end other programs until 2 GiB are free")
    assert lines(disks)[0] == (
        "problem disk runs: 0.25 GiB are free; free 1 GiB, or start in a folder on another disk, or name one with --run"
    )
    assert lines(disks)[1].endswith("free 1 GiB, or set HF_HOME to a folder on another disk")
    monkeypatch.setattr(machine, "free_memory_gb", lambda: None)
    assert "note memory this system does not tell how much is free" in lines(machine.examine_machine())


def test_folders_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    found = lines(machine.examine_machine())[2:]
    assert found[0].startswith("problem disk runs: nothing can be written there; change the folder's permissions, or ")
    monkeypatch.setenv("HF_HOME", "~nobody-of-this-name/x")
    assert "problem disk hub cache: cannot be looked at (runtimeerror)" in lines(machine.examine_machine())[3]


def test_embedded_games_are_counted(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    splits = {path.name.partition(".")[0] for path in data_path("alfworld").iterdir()}
    (line,) = lines(machine.examine_games())
    assert line.startswith("ok games ALFWorld: the embedded ones: train 600, valid_seen 120")
    assert {"train", "valid_seen"} <= splits


def test_games_of_ones_own_are_counted_or_missed(monkeypatch, tmp_path):
    for split, games in (("train", 3), ("valid_seen", 2)):
        for game in range(games):
            folder = tmp_path / "data" / "json_2.1.1" / split / f"look_at-{game}" / "trial"
            folder.mkdir(parents=True)
            (folder / "game.tw-pddl").touch()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))
    assert lines(machine.examine_games()) == ["ok games ALFWorld: $ALFWORLD_DATA: train 3, valid_seen 2"]
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    (line,) = lines(machine.examine_games())
    assert line.startswith("problem games ALFWorld: $ALFWORLD_DATA: ")
    assert line.endswith("; run alfworld-download, or unset ALFWORLD_DATA")


def test_the_pocket_policy_is_compared_with_its_card(monkeypatch, tmp_path):
    assert lines(machine.examine_pocket()) == ["ok pocket the embedded policy has the hash of its card"]
    monkeypatch.setattr("bmrl.models.source.data_path", lambda *_: tmp_path)
    (found,) = machine.examine_pocket()
    assert found.blocks
    assert "reinstall bmrl" in found.text


# --- all of it ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without GPU and hub, and with an empty cache, of a user with a name."""
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    for name, value in {
        "HOME": home,
        "HF_HOME": home / "hf",
        "PATH": "/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": "",
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in ("HF_HUB_CACHE", "HF_TOKEN", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return home


def test_a_recipe_that_cannot_run(bare):
    found = examine(load(recipes_path("alfworld_mix.yaml"), ()), named=True)
    blocking = [each for each in lines(each for each in found if each.blocks) if "alfworld_mix" in each]
    assert blocking[0].endswith(f"run it on a machine with one; what can run here: {INSTEAD}")
    assert any("is not on this disk: hf download" in line for line in blocking)
    assert lines(found)


def test_a_recipe_whose_model_is_on_the_disk_needs_no_hub(bare):
    snapshot = bare / "hf" / "hub" / "models--a--b" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    recipe = load(recipes_path("quickstart.yaml"), ("model.name=a/b", "model.dtype=float32"))
    found = lines(examine(recipe, named=True))
    assert "note hub not asked, for HF_HUB_OFFLINE is set; a/b is on this disk, so that is fine" in found


def fit_of(recipe, torch):
    return list(examine_fit(load(recipes_path(f"{recipe}.yaml"), ()), torch, named=True))


def test_a_recipe_against_what_is_free(monkeypatch):
    works, disk = fit_of("quickstart", CPU)
    assert works.state == disk.state == "ok"
    monkeypatch.setattr("bmrl.doctor.fit.free_memory_gb", lambda: 0.1)
    monkeypatch.setattr("bmrl.doctor.fit.free_disk_gb", lambda _: 0.001)
    too_much, full = fit_of("quickstart", CPU)
    assert lines([too_much])[0].endswith(
        "GiB by estimate, 0.1 of memory are free; end other programs, or lower model.context_tokens, "
        "rollout.kv_cache_gb or train.micro_batch_tokens"
    )
    assert lines([full])[0].endswith("of the disk are free; free some, or lower train.keep_checkpoints")
    assert too_much.blocks
    assert full.blocks


def test_a_card_recipe_against_cards():
    fits, _ = fit_of("alfworld_mix", card())
    assert "23.0 of the card are free" in lines([fits])[0]
    assert fits.state == "ok"
    small, _ = fit_of("alfworld_mix", card(total=8 * GIB, free=7 * GIB))
    assert small.blocks
    assert "; end other programs, or change: --set " in lines([small])[0]
    tiny, _ = fit_of("alfworld_7b_mix", card(total=2 * GIB, free=1 * GIB))
    assert tiny.remedy.startswith(("take a card of ", "end other programs, or change: --set "))
    # Without a card there is nothing to hold it against: that one is needed is told elsewhere.
    assert len(fit_of("alfworld_mix", CPU)) == 1


def test_a_model_that_nothing_tells_the_size_of(bare):
    recipe = load(recipes_path("quickstart.yaml"), ("model.name=a/b",))
    (found,) = examine_fit(recipe, CPU, named=True)
    assert found.state == "note"
    assert found.text.startswith("its memory cannot be told: ")
    assert list(examine_fit(recipe, CPU, named=False)) == []


def doctor(*arguments: str, code: int, **environment: str):
    line = [sys.executable, "-m", "bmrl", "doctor", *arguments]
    root = str(Path(machine.__file__).resolve().parents[2])
    done = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root, **environment}, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_command_says_nothing_of_user_and_machine(bare):
    games = bare / "games"
    told = doctor("--json", code=0, ALFWORLD_DATA=str(games), HF_TOKEN="hf_secret", USER="alice")
    found = json.loads(told)
    assert (found["recipe"], found["can_run"]) == ("quickstart", True)
    assert {"topic", "state", "text", "remedy", "blocks"} == set(found["findings"][0])
    for secret in ("alice", "hf_secret", str(bare), socket.gethostname()):
        assert secret not in told
    told = doctor("alfworld_mix", code=1)
    assert sum(line.startswith("problem") for line in told.splitlines()) >= 2


def test_a_long_name_stands_apart():
    assert Finding("a_recipe_of_some_length", "problem", "x", "y").line == "problem  a_recipe_of_some_length x; y"
