"""Checkpoints: bitwise continuation, damage found, kills and full disks survived."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from bmrl import checkpoint
from bmrl.errors import BmrlError
from bmrl.run_folder import checkpoints


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def tiny():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        data = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(data).pow(2).mean().backward()
        optimizer.step()


def save(folder, step, model, optimizer, **state):
    parameters = dict(model.named_parameters())
    return checkpoint.save(
        folder,
        step,
        adapter=parameters,
        adapter_config={"r": 4},
        optimizer=checkpoint.optimizer_tensors(optimizer, parameters),
        state=state,
    )


def save_simply(folder, step, value=0.0):
    return checkpoint.save(
        folder,
        step,
        adapter={"w": torch.full((1000,), value)},
        adapter_config={},
        optimizer={},
        state={"value": value},
    )


def test_continuation_is_bitwise_equal(tmp_path):
    model = tiny()
    optimizer = adamw(model)
    train(model, optimizer, 5)
    path = save(tmp_path, 5, model, optimizer, env_turns=12)
    train(model, optimizer, 5, start=5)

    resumed = tiny()
    other = adamw(resumed)
    train(resumed, other, 2)  # a state of its own, to be overwritten
    found = checkpoint.load(path)
    assert (found.step, found.state, found.adapter_config) == (5, {"env_turns": 12}, {"r": 4})
    resumed.load_state_dict(found.adapter)
    checkpoint.restore_optimizer(other, dict(resumed.named_parameters()), found.optimizer)
    train(resumed, other, 5, start=5)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    # The test could tell: without the optimizer's state the weights end elsewhere.
    fresh = tiny()
    fresh.load_state_dict(found.adapter)
    train(fresh, adamw(fresh), 5, start=5)
    assert not torch.equal(fresh[0].weight, model[0].weight)


def test_optimizer_state_has_names_and_survives_before_the_first_step():
    model = tiny()
    optimizer = adamw(model)
    names = dict(model.named_parameters())
    assert checkpoint.optimizer_tensors(optimizer, names) == {}
    train(model, optimizer, 1)
    tensors = checkpoint.optimizer_tensors(optimizer, names)
    assert sorted(tensors) == sorted(f"{slot}/{name}" for slot in ("exp_avg", "exp_avg_sq", "step") for name in names)
    checkpoint.restore_optimizer(optimizer, names, {})
    assert len(optimizer.state) == 0


def test_a_python_step_counter_comes_back_as_one():
    model = tiny()
    optimizer = adamw(model)
    weight = model[0].weight
    optimizer.state[weight] = {"step": 3, "state1": torch.zeros(4, 3, dtype=torch.uint8)}
    names = dict(model.named_parameters())
    tensors = checkpoint.optimizer_tensors(optimizer, names)
    checkpoint.restore_optimizer(optimizer, names, tensors)
    assert type(optimizer.state[weight]["step"]) is int
    assert optimizer.state[weight]["step"] == 3
    assert optimizer.state[weight]["state1"].dtype is torch.uint8


class Paged(torch.optim.SGD):
    """What bitsandbytes' paged optimizers show of themselves: only buffers of their own can leave the card."""

    is_paged = True

    def get_state_buffer(self, parameter, dtype):
        buffer = torch.zeros_like(parameter, dtype=dtype)
        buffer.is_paged = True
        return buffer


def test_a_paged_state_comes_back_into_pages():
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = Paged([parameter], lr=0.1)
    stored = {"state1/a": torch.tensor([1, 2, 3], dtype=torch.uint8), "qmap1/a": torch.ones(256)}
    checkpoint.restore_optimizer(optimizer, ["a"], stored)
    state = optimizer.state[parameter]
    assert state["state1"].is_paged and state["state1"].dtype == torch.uint8 and state["state1"].tolist() == [1, 2, 3]
    assert not hasattr(state["qmap1"], "is_paged") and state["qmap1"].sum() == 256


def test_an_optimizer_of_other_parameters_is_refused():
    model = tiny()
    optimizer = adamw(model)
    train(model, optimizer, 1)
    names = dict(model.named_parameters())
    before = optimizer.state[model[0].weight]["exp_avg"].clone()
    for tensors in ({"exp_avg/9.weight": before}, {"exp_avg/0.weight": torch.zeros(2)}):
        with pytest.raises(BmrlError, match="fits no trained parameter"):
            checkpoint.restore_optimizer(optimizer, names, tensors)
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], before)


def test_dtypes_views_and_tied_weights_survive(tmp_path):
    base = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    tensors = {"tied.a": base, "tied.b": base, "view": base.t(), "scalar": torch.tensor(2.5)}
    path = checkpoint.save(tmp_path, 1, adapter=tensors, adapter_config={}, optimizer={}, state={})
    for name, tensor in checkpoint.load(path).adapter.items():
        assert tensor.dtype is tensors[name].dtype
        assert torch.equal(tensor, tensors[name]), name


def test_the_adapter_file_says_that_it_is_pytorch(tmp_path):
    from safetensors import safe_open

    path = save_simply(tmp_path, 100)
    assert path == tmp_path / "step-000100"
    with safe_open(path / "adapter" / "adapter_model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert (path / "adapter" / "adapter_config.json").is_file()


def test_the_same_checkpoint_has_the_same_bytes(tmp_path):
    a, b = save_simply(tmp_path / "a", 1), save_simply(tmp_path / "b", 1)
    files = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    assert len(files) == 4
    assert all((a / name).read_bytes() == (b / name).read_bytes() for name in files)


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    save_simply(tmp_path, 3, 1.0)
    path = save_simply(tmp_path, 3, 2.0)
    assert checkpoint.load(path).state == {"value": 2.0}
    assert names(tmp_path) == ["step-000003"]


def damage(path, name, how):
    file = path / name
    data = file.read_bytes()
    if how == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        file.write_bytes(data[:-10] + bytes([data[-10] ^ 1]) + data[-9:])
    else:
        file.unlink()


FILES = (
    "adapter/adapter_model.safetensors",
    "adapter/adapter_config.json",
    "optimizer.safetensors",
    "state.json",
)


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_and_passed_over(tmp_path, name, how):
    model = tiny()
    optimizer = adamw(model)
    train(model, optimizer, 1)
    save(tmp_path, 10, model, optimizer, a=1)
    path = save(tmp_path, 20, model, optimizer, a=1)
    damage(path, name, how)
    with pytest.raises(BmrlError, match=f"step-000020/{name}: damaged.*remove the folder") as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)
    lines = []
    assert checkpoint.latest(tmp_path, lines.append) == tmp_path / "step-000010"
    assert len(lines) == 1 and lines[0].startswith(f"warning: passing over step-000020/{name}")


def test_damage_to_a_number_in_the_state_is_found(tmp_path):
    path = save_simply(tmp_path, 1, 1.0)
    file = path / "state.json"
    file.write_text(file.read_text().replace('"value": 1.0', '"value": 7.0'))
    with pytest.raises(BmrlError, match=r"state\.json: damaged"):
        checkpoint.load(path)


def test_another_format_is_refused_by_its_number(tmp_path):
    path = save_simply(tmp_path, 1)
    manifest = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(BmrlError, match="checkpoint format 2, this bmrl reads 1"):
        checkpoint.load(path)


def test_latest_warns_on_stderr(tmp_path, capsys):
    assert checkpoint.latest(tmp_path / "none") is None
    damage(save_simply(tmp_path, 1), "state.json", "gone")
    assert checkpoint.latest(tmp_path) is None
    assert capsys.readouterr().err.startswith("warning: passing over step-000001/state.json")


def test_complete_and_prune(tmp_path):
    assert checkpoints(tmp_path / "none") == {}
    for step in (5, 20, 100, 1_000_000):
        save_simply(tmp_path, step)
    (tmp_path / "step-000200.tmp-abc").mkdir()
    (tmp_path / "notes").mkdir()
    assert sorted(checkpoints(tmp_path)) == [5, 20, 100, 1_000_000]
    checkpoint.prune(tmp_path, 2)
    assert sorted(checkpoints(tmp_path)) == [100, 1_000_000]
    checkpoint.prune(tmp_path, 0)  # never the last one
    assert sorted(checkpoints(tmp_path)) == [1_000_000]
    assert (tmp_path / "notes").is_dir()


def test_clean_removes_leftovers_and_brings_back_what_was_being_replaced(tmp_path):
    checkpoint.clean(tmp_path / "none")
    save_simply(tmp_path, 1, 1.0)
    save_simply(tmp_path, 2, 2.0)
    (tmp_path / "step-000003.tmp-0a").mkdir()
    (tmp_path / "step-000003.tmp-0a" / "state.json").write_text("{")
    (tmp_path / "step-000001").rename(tmp_path / "step-000001.replaced-0b")  # killed in between
    (tmp_path / "step-000002.replaced-0c").mkdir()  # killed after the new one was in place
    checkpoint.clean(tmp_path)
    assert names(tmp_path) == ["step-000001", "step-000002"]
    assert checkpoint.load(tmp_path / "step-000001").state == {"value": 1.0}


KILLED = """
import os, pathlib, signal, sys, torch
from bmrl import checkpoint
folder, deadly = pathlib.Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def counted(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
os.fsync, os.rename, os.replace = map(counted, (os.fsync, os.rename, os.replace))
checkpoint.save(folder, 2, adapter={"w": torch.ones(3)}, adapter_config={}, optimizer={}, state={"value": 9})
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    # The program is killed at each sync and rename in turn; where it survives there are no more.
    for deadly in range(1, 100):
        folder = tmp_path / str(deadly)
        save_simply(folder, 1, 1.0)
        save_simply(folder, 2, 2.0)
        answer = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(deadly)])
        checkpoint.clean(folder)
        assert names(folder) == ["step-000001", "step-000002"], deadly
        assert checkpoint.load(folder / "step-000002").state["value"] in (2.0, 9), deadly
        if answer.returncode == 0:
            break
        assert answer.returncode == -signal.SIGKILL
    assert deadly > 10


FULL = """
import pathlib, resource, sys, torch
from bmrl import checkpoint
from bmrl.errors import BmrlError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    checkpoint.save(pathlib.Path(sys.argv[1]), 2, adapter={"w": torch.ones(3)}, adapter_config={},
                    optimizer={"w": torch.ones(9999)}, state={})
except BmrlError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path):
    save_simply(tmp_path, 1, 1.0)
    answer = subprocess.run([sys.executable, "-B", "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert answer.stdout == ("disk full: could not write optimizer.safetensors; free space and resume with --resume\n")
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.load(tmp_path / "step-000001").state == {"value": 1.0}
