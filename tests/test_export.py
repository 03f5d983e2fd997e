"""`bmrl export`: what leaves a run is the policy, loads without bmrl, and says what it is."""

import contextlib
import getpass
import hashlib
import io
import json
import platform
import resource
import shutil
from pathlib import Path

import export_run
import pytest
import tiny
import torch
import yaml
from safetensors.torch import load_file

from bmrl import run_folder
from bmrl.cli import main
from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path, recipes_path
from bmrl.policy import new_model, save_model
from bmrl.recipe import load, resolved
from bmrl.run import export
from bmrl.run.about import settings
from bmrl.target import find

BUDGET, TASKS = 4, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return export_run.make(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    """Adapter and float32 weights of its last checkpoint."""
    out = tmp_path_factory.mktemp("out") / "policy"
    write(run, out, dtype="float32")
    return out


@pytest.fixture(scope="module")
def episodes(run) -> list:
    return [export_run.as_plain(one) for one in export_run.greedy(run, budget=BUDGET, tasks=TASKS)]


def write(run, out, *, checkpoint="last", forms=(), dtype="bfloat16", llama_cpp=None):
    return export(find(str(run), checkpoint), forms=forms, dtype=dtype, out=out, llama_cpp=llama_cpp)


def command(*line: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main(list(line))
    assert done.value.code == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def pretrained(folder: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def with_peft(folder: Path):
    """The adapter on its base, by PEFT alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    base = AutoModelForCausalLM.from_pretrained(data_path("pocket"), dtype="float32")
    base.generation_config = GenerationConfig.from_pretrained(folder)
    return PeftModel.from_pretrained(base, folder), AutoTokenizer.from_pretrained(folder)


def test_merged_weights_alone_play_the_policys_greedy_episodes(run, exported, episodes):
    model, tokenizer = pretrained(exported / "merged")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) == episodes


def test_the_adapter_on_its_base_plays_the_policys_greedy_episodes(run, exported, episodes):
    model, tokenizer = with_peft(exported / "adapter")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) == episodes


def test_another_policy_plays_otherwise(run, episodes, tmp_path):
    """Or the two tests above would show nothing."""
    write(run, tmp_path / "out", checkpoint="2", forms=["merged"], dtype="float32")
    model, tokenizer = pretrained(tmp_path / "out" / "merged")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) != episodes


def test_both_forms_are_played_with_the_settings_of_the_run_and_give_its_numbers(run, exported):
    def result(target):
        # Budgets 2 and 4 and temperature 0.5 are the run's recipe's.
        found = json.loads(command("eval", target, "--tasks", "3", "--json")[0])
        return {key: value for key, value in found.items() if key not in ("target", "checkpoint")}

    merged, adapter, own = (result(str(one)) for one in (exported / "merged", exported / "adapter", run))
    assert [point["budget"] for point in own["budgets"]] == [2, 4] and own["sampling"]["temperature"] == 0.5
    assert merged == adapter == own


def test_settings_that_are_damaged_are_one_line(exported, tmp_path):
    shutil.copytree(exported / "adapter", tmp_path / "adapter")
    path = tmp_path / "adapter" / "bmrl_recipe.json"
    for text in ("{", '{"name": 3}'):
        path.write_text(text)
        _, err = command("eval", str(tmp_path / "adapter"), code=1)
        assert len(err.splitlines()) == 1 and str(path) in err and "remove it" in err


def test_a_run_trained_in_float32_rounds_once_to_sixteen_bits(run, exported, tmp_path):
    result = write(run, tmp_path / "out", forms=["merged"])
    half, whole = (load_file(f / "merged" / "model.safetensors") for f in (tmp_path / "out", exported))
    assert half.keys() == whole.keys() and {t.dtype for t in half.values()} == {torch.bfloat16}
    assert all(torch.equal(half[name], whole[name].bfloat16()) for name in half)
    assert not (tmp_path / "out" / "adapter").exists()
    # Three episodes of four turns; a command is two tokens or more, its end included.
    assert result["gap"]["episodes"] == 3 and result["gap"]["tokens"] >= 3 * 4 * 2
    # bfloat16 has 8 bits: log-probabilities move, by far less than a nat.
    assert 1e-5 < result["gap"]["mean"] < result["gap"]["highest"] < 1


def test_float32_weights_are_the_policy_to_rounding(run, tmp_path):
    result = write(run, tmp_path / "out", forms=["merged"], dtype="float32")
    gap = result["gap"]
    assert gap["highest"] < 1e-4 and gap["same_choice"] == gap["tokens"]


def test_nothing_else_is_in_the_folder(exported):
    assert sorted(path.name for path in exported.parent.iterdir()) == ["policy"]
    names = {form: sorted(path.name for path in (exported / form).iterdir()) for form in ("adapter", "merged")}
    tokenizer = [
        "README.md",
        "bmrl_recipe.json",
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert names["adapter"] == sorted([*tokenizer, "adapter_config.json", "adapter_model.safetensors"])
    assert names["merged"] == sorted([*tokenizer, "config.json", "model.safetensors"])


def test_what_ends_an_answer_and_how_it_is_sampled_stand_with_the_weights(exported):
    for form in ("adapter", "merged"):
        found = json.loads((exported / form / "generation_config.json").read_text())
        # <|end|> is 3 and <|pad|> 1 in the embedded policy's tokenizer; 0.5 and 16 are the recipe's.
        told = {key: found[key] for key in ("eos_token_id", "pad_token_id", "temperature", "top_k", "max_new_tokens")}
        assert told == {"eos_token_id": 3, "pad_token_id": 1, "temperature": 0.5, "top_k": 0, "max_new_tokens": 16}


def header(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_says_what_it_is_of(run, exported):
    card = (exported / "merged" / "README.md").read_text()
    assert header(card) == {
        "base_model": "pocket",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["bmrl", "agent", "reinforcement-learning", "alfworld"],
    }
    assert header((exported / "adapter" / "README.md").read_text())["library_name"] == "peft"
    assert "# quickstart, step 4\n" in card
    recipe = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert recipe == run_folder.load_resolved(run)
    for row in ("| steps | 4 |", "| turns played | 400 |", "| time: all, evaluations included | 4 min |"):
        assert row in card
    # Two records of 500 tokens each.
    assert "| tokens and memory: sampled | 1,000 |" in card
    assert f"| versions: torch | {torch.__version__} |" in card


def test_the_hashes_of_the_card_are_those_of_the_files(run, exported):
    def sha256(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    adapter = sha256(run / "checkpoints" / "step-000004" / "adapter" / "adapter_model.safetensors")
    card = (exported / "merged" / "README.md").read_text()
    assert f"| `{sha256(exported / 'merged' / 'model.safetensors')}` | model.safetensors |" in card
    assert f"| `{adapter}` | the adapter of the run's step-000004 |" in card
    assert f"| `{sha256(run / 'recipe.resolved.json')}` | `recipe.resolved.json` of the run |" in card
    assert f"| `{'a' * 64}` | the games of train |" in card
    assert f"| `{adapter}` | adapter_model.safetensors |" in (exported / "adapter" / "README.md").read_text()


def test_the_card_has_the_curve_before_and_after(run, exported, tmp_path):
    card = (exported / "merged" / "README.md").read_text()
    before, after = (json.loads((run / "eval" / f"step-00000{step}.json").read_text())["budgets"] for step in (0, 4))
    assert "| budget | before training | step 4 | interval | ceiling | search reference |" in card
    for was, now in zip(before, after, strict=True):
        assert f"| {now['budget']} | {100 * was['success']:.1f} % | {100 * now['success']:.1f} % |" in card
    write(run, tmp_path / "out", checkpoint="2", forms=["adapter"])
    card = (tmp_path / "out" / "adapter" / "README.md").read_text()
    assert "The run holds no evaluation of this checkpoint; `bmrl eval RUN --checkpoint 2`" in card
    assert "| turns played | 200 |" in card


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_the_code_of_the_card_runs_and_answers_as_the_policy(form, exported, episodes):
    card = (exported / form / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    out = io.StringIO()
    with contextlib.chdir(exported / form), contextlib.redirect_stdout(out):
        exec(code, {})
    # It asks what the first of the stored episodes was asked, which is that of the first task.
    assert out.getvalue().strip() == episodes[0][0][2]


def test_no_file_names_this_machine(tmp_path):
    secret = tmp_path / "ann's private folder"
    secret.mkdir()
    shutil.copytree(data_path("pocket"), secret / "base")
    run = export_run.make(tmp_path, f"model.name={secret / 'base'}", steps=(1,))
    write(run, tmp_path / "out")
    names = [name for name in (platform.node(), getpass.getuser()) if len(name) > 4]  # shorter ones are anywhere
    hidden = [str(tmp_path), "private folder", str(Path.home()) + "/", str(data_path().parent), *names]
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert not [text for text in hidden if text.encode() in path.read_bytes()], path.name
    assert header((tmp_path / "out" / "merged" / "README.md").read_text())["base_model"] == "base"
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "base"


def refused(error, **options):
    with pytest.raises(error) as caught:
        write(**options)
    assert type(caught.value) is error
    line = str(caught.value)
    assert "\n" not in line and len(line) < 300
    return line


def test_an_existing_folder_is_refused(run, tmp_path):
    assert refused(UsageError, run=run, out=tmp_path) == f"{tmp_path} exists; choose another --out"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(run, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, limits[1]))  # the adapter is smaller, the weights are not
    try:
        line = refused(BmrlError, run=run, out=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not write out" in line and "export again" in line and "--resume" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_one_line(run, tmp_path):
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    path = broken / "checkpoints" / "step-000004" / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    line = refused(BmrlError, run=broken, checkpoint="4", out=tmp_path / "out")
    assert line.startswith("step-000004/adapter/adapter_model.safetensors: damaged")
    assert write(broken, tmp_path / "out", forms=["adapter"])["checkpoint"] == "step-000002"  # what eval takes


def test_the_command_writes_and_says_where(run, tmp_path):
    with contextlib.chdir(tmp_path):
        out, err = command("export", str(run), "--checkpoint", "best", "--format", "adapter")
        assert out == "exports/quickstart-step-000004/adapter\n"
        assert (tmp_path / out.strip() / "README.md").is_file()
        assert "chosen for its curve" in (tmp_path / out.strip() / "README.md").read_text()
        _, err = command("export", str(run), "--format", "adapter", code=2)
        assert err == "bmrl: exports/quickstart-step-000004 exists; choose another --out\n"
        _, err = command("export", "pocket", code=2)
        assert err == "bmrl: pocket is no run; name a run folder, usually in runs/\n"
        _, err = command("export", str(run), "--checkpoint", "3", code=2)
        assert "--checkpoint 3" in err and "has 2, 4" in err
        _, err = command("export", code=2)
        assert "no run in runs/ to export" in err


def test_a_run_that_trained_a_whole_model_is_exported_as_one(tmp_path):
    recipe = load(
        recipes_path("pocket_sft.yaml"), ["model.new={layers: 2, hidden: 32, heads: 4, kv_heads: 2, intermediate: 48}"]
    )
    run = run_folder.create(tmp_path, "", resolved(recipe), run_folder.system_info())
    policy = new_model(
        tiny.tokenizer(),
        layers=2,
        hidden=32,
        heads=4,
        kv_heads=2,
        intermediate=48,
        context_tokens=512,
        seed=0,
        name="new",
    )
    export_run.save(policy, run, 7)
    expected = {name: tensor.clone() for name, tensor in policy.causal.state_dict().items()}
    save_model(policy, run / "model", dtype="bfloat16")
    assert "it has no adapter" in refused(UsageError, run=run, forms=["adapter"], out=tmp_path / "out")
    result = write(run, tmp_path / "out", dtype="float32")
    assert list(result["sha256"]) == ["merged"] and result["gap"] is None
    found = pretrained(tmp_path / "out" / "merged")[0].state_dict()
    # The checkpoint's float32 weights, not the rounded ones beside it.
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    card = (tmp_path / "out" / "merged" / "README.md").read_text()
    assert "base_model" not in header(card) and "This folder is the whole model, float32" in card


def test_a_gguf_file_is_converted_from_the_merged_weights(run, tmp_path, monkeypatch):
    script = tmp_path / "llama.cpp" / "convert_hf_to_gguf.py"
    script.parent.mkdir()
    script.write_text(
        "import pathlib, sys\n"
        "weights = (pathlib.Path(sys.argv[1]) / 'model.safetensors').read_bytes()\n"
        "pathlib.Path(sys.argv[3]).write_bytes(b'GGUF' + weights)\n"
    )
    monkeypatch.setenv("LLAMA_CPP", str(script.parent))
    result = write(run, tmp_path / "out", forms=["gguf"])
    (folder,) = (tmp_path / "out").iterdir()  # the merged weights were only on the way
    name = "quickstart-step-000004-bf16.gguf"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", name]
    assert list(result["sha256"]["gguf"]) == [name]
    card = (folder / "README.md").read_text()
    assert header(card)["library_name"] == "gguf" and f"llama-cli -m {name} --jinja" in card
    script.write_text("import sys\nsys.exit('no such architecture')")
    assert "no such architecture" in refused(BmrlError, run=run, out=tmp_path / "again", forms=["gguf"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama.cpp", "out"]


def test_folders_of_the_machine_are_no_settings_of_an_export():
    recipe = load(recipes_path("quickstart.yaml"))
    env = recipe.env.model_copy(update={"args": {"source": "/home/ann/games", "admissible": False}})
    assert settings(recipe.model_copy(update={"env": env}), dtype=None)["env"]["args"] == {"admissible": False}


def test_quantized_weights_are_those_of_the_adapter_alone():
    recipe = load(recipes_path("quickstart.yaml"), ["model.quantization=nf4", "model.dtype=bfloat16"])

    def model(dtype):
        found = settings(recipe, dtype=dtype)["model"]
        return found["quantization"], found["dtype"]

    assert model(None) == ("nf4", "bfloat16")
    assert model("bfloat16") == ("none", "bfloat16") and model("float32") == ("none", "float32")
