"""Chat families on small tokenizers with their habits (tests/fixtures/chat/make.py): what is read and what is trained."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from bmrl.batch import collate, make_rows
from bmrl.chat import make_chat, opening_text, rules
from bmrl.credit import Credit
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.errors import UsageError
from bmrl.rollout import rollout
from bmrl.types import Play

FOLDER = Path(__file__).parent / "fixtures" / "chat"
# family -> the token that ends an agent's turn
STOPS = {
    "qwen2.5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "mistral_v1": "</s>",
    "mistral_v3": "</s>",
    "mistral_tekken": "</s>",
}
EACH = pytest.mark.parametrize("name", STOPS)
SEEN = (
    "You are in the middle of a room 1. You see a lamp 12.",
    "It's closed.\nNothing happens.",
    "You pick up the mug 3.",
)
ACTIONS = ("take lamp 12 from desk 2", "go")
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@cache
def chat_of(name, think=False):
    return make_chat(AutoTokenizer.from_pretrained(FOLDER / name), think=think)


def stop_of(name):
    return chat_of(name).tokenizer.convert_tokens_to_ids(STOPS[name])


def played(script, chat, *, rows=1, turns=5, turn_tokens=24):
    """Episodes of a scripted agent in a corridor of eight steps, and the sampler that was asked."""
    sampler = tiny.ScriptedSampler(script, rows=rows, stop=min(chat.stop_ids))
    plays = [Play(1, 0, n, Task("t", "corridor", data=8), "train", 0, turns) for n in range(rows)]
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=rows, make=tiny.Corridor) as pool:
        episodes = rollout(
            plays, sampler=sampler, chat=chat, pool=pool, turn_tokens=turn_tokens, context_tokens=4096, temperature=1.0
        )
    return episodes, sampler


def trained(episodes):
    """Per episode: all ids of its row in the batch, and those that the loss sees."""
    count = len(episodes)
    rewards = [1.0] * count + [0.0] * count  # each twice: without a difference there would be nothing to learn
    twice = episodes * 2
    rows = make_rows(
        [twice],
        tiny.with_the_last([twice], [rewards]),
        credit=Credit("grpo"),
        truncation={},
        aggregation="constant",
        constant=1,
    )
    batch = collate(rows, torch.device("cpu"), packed=False)
    return [
        (tuple(batch.ids[row][: len(episode.token_ids)].tolist()), tuple(batch.ids[row][batch.mask[row]].tolist()))
        for row, episode in enumerate(episodes)
    ]


def test_the_files_are_what_the_script_makes(tmp_path):
    spec = importlib.util.spec_from_file_location("make_chat_fixtures", FOLDER / "make.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.make(tmp_path)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*") if path.is_file())
    assert len(made) == 3 * len(STOPS)  # tokenizer, its configuration, template
    for path in made:
        assert (FOLDER / path).read_bytes() == (tmp_path / path).read_bytes(), path


@EACH
@pytest.mark.parametrize("think", [False, True])
def test_a_conversation_has_the_ids_of_its_template_rendered_at_once(name, think):
    chat = chat_of(name, think)
    ours = list(chat.opening(SEEN[0]))
    messages = [{"role": "user", "content": opening_text(rules(think=think), SEEN[0])}]
    for action, seen in zip(ACTIONS, SEEN[1:], strict=True):
        ours += [*chat.answer(action), *chat.following(seen, stopped=True)]
        messages += [
            {"role": "assistant", "content": f"<action>{action}</action>"},
            {"role": "user", "content": seen},
        ]
    told = {"enable_thinking": think, "strftime_now": lambda form: "26 Jul 2024"}
    text = chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **told)
    if name == "qwen3" and not think:
        # It strips the empty thoughts of earlier prompts, which were read there and stay.
        text = text.replace("<|im_start|>assistant\n", f"<|im_start|>assistant\n{EMPTY_THOUGHT}")
        text = text.replace(EMPTY_THOUGHT * 2, EMPTY_THOUGHT)
    assert ours == chat.tokenizer.encode(text, add_special_tokens=False)
    # A token of its own for each word, or nothing would show where text is cut.
    assert len(ours) < len(text) / 2


@EACH
def test_turns_only_extend_the_transcript_and_the_stop_token_is_trained(name):
    chat, stop = chat_of(name, think=True), stop_of(name)
    go, stay = (chat.answer(action)[: -len(chat.close)] for action in ("go", "stay"))
    thought = chat.encode("<think>\nI think.\n</think>\n\n")
    turns = [
        [(*go, stop), (*thought, *go, stop), go[:3], (*stay, stop), (*go, stop)],
        [(*thought, *stay, stop), go, (*go, stop), (stop,), thought],
    ]
    episodes, sampler = played(lambda row, n: turns[row][n], chat, rows=2)
    assert [[turn.action for turn in episode.turns] for episode in episodes] == [
        ["go", "go", "", "stay", "go"],
        ["stay", "", "go", "", ""],
    ]
    for row, (episode, (ids, learned)) in enumerate(zip(episodes, trained(episodes), strict=True)):
        prompts = sampler.prompts[row::2]
        assert len(prompts) == 5
        for n, prompt in enumerate(prompts):
            assert episode.token_ids[: len(prompt)] == prompt, "the sampler read what is no prefix of the episode"
            assert episode.token_ids[len(prompt) :][: len(turns[row][n])] == turns[row][n]
        assert ids == episode.token_ids
        assert learned == tuple(i for turn in turns[row] for i in turn)  # thoughts and stop tokens included
    # A turn that was cut off is closed for it, untrained: the same text follows as after a stop token.
    closed = chat.following("x", stopped=False)
    assert closed == (*chat.close, *chat.following("x", stopped=True))
    assert stop in closed and chat.close[-1] == stop


def test_thoughts_that_the_template_would_strip_stay():
    chat = chat_of("qwen3", think=True)
    said = "<think>\nI should look there.\n</think>\n\n<action>go</action>"
    ids = (*chat.tokenizer.encode(said, add_special_tokens=False), stop_of("qwen3"))
    ((episode,), _) = played(lambda row, n: ids, chat, turns=3)
    text = chat.tokenizer.decode(episode.token_ids)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "b"},
    ]
    assert "I should look there" not in chat.tokenizer.apply_chat_template(messages, tokenize=False)
    assert text.count("I should look there") == 3
    assert [turn.action for turn in episode.turns] == ["go"] * 3
    # The thinking marks are tokens of their own and trained; in the prompt of a later turn there is none of them.
    mark = chat.tokenizer.convert_tokens_to_ids("<think>")
    assert sum(turn.action_ids.count(mark) for turn in episode.turns) == 3
    assert mark not in chat.following("x", stopped=True)
    # Without thinking each prompt holds an empty thought, as the family wants it.
    assert chat_of("qwen3").tokenizer.decode(chat_of("qwen3").following("x", stopped=True)).endswith(EMPTY_THOUGHT)


@EACH
def test_what_each_family_puts_before_the_game(name):
    chat = chat_of(name)
    text = chat.tokenizer.decode(chat.opening("x"))
    begins = {
        "qwen2.5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
        "qwen3": "<|im_start|>user\nYou act",
        "smollm2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n",
        "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYou act",
        "gemma": "<bos><start_of_turn>user\nYou act",
        "mistral_v1": "<s> [INST] You act",  # decoded with the blank that this tokenizer puts after a control token
        "mistral_v3": "<s>[INST] You act",
        "mistral_tekken": "<s>[INST]You act",
    }
    assert text.startswith(begins[name])
    assert text.count("<bos>") + text.count("<s>") + text.count("<|begin_of_text|>") <= 1


@EACH
def test_what_ends_a_turn(name):
    chat = chat_of(name)
    ends = {"gemma": {"<end_of_turn>", "<eos>"}}.get(name, {STOPS[name]})
    assert set(chat.tokenizer.convert_ids_to_tokens(sorted(chat.stop_ids))) == ends
    # After the end that was sampled comes what the template has between two turns.
    between = chat.tokenizer.decode(chat.following("x", stopped=True))
    starts = {
        **dict.fromkeys(("qwen2.5", "qwen3", "smollm2"), "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"),
        "llama3": "<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "gemma": "\n<start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n",
        "mistral_v1": "[INST] x [/INST]",
        "mistral_v3": "[INST] x[/INST]",
        "mistral_tekken": "[INST]x[/INST]",
    }
    assert between.startswith(starts[name])


CONTROL = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>", "<s>", "</s>", "[INST]", "[/INST]", "<unk>", "<pad>"),
    *("<think>", "</think>", "<tool_call>", "<0x0A>", "\u2402", "  ", "\n", "go", "it's 2026", "\x00", "世界 🎲"),
]


@EACH
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.sampled_from(CONTROL) | st.text(max_size=6), max_size=6))
def test_text_of_the_environment_stays_text(name, texts):
    chat = chat_of(name)
    text = "".join(texts).replace("▁", "_")  # that sign is a blank to sentencepiece
    ids = chat.encode(text)
    assert not set(ids) & (chat.speech.controls | chat.stop_ids)
    said = text.encode("utf-8", "replace").decode()
    if name.startswith("qwen"):
        said = chat.tokenizer.backend_tokenizer.normalizer.normalize_str(said)  # NFC is how the family reads
    assert chat.text(ids) == said
    empty, whole = chat.following("", stopped=True), chat.following(text, stopped=True)
    assert [i for i in whole if i in chat.speech.controls] == [i for i in empty if i in chat.speech.controls]


@EACH
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_ids_that_text_would_not_give_back_reach_the_loss_as_they_were_sampled(name, data):
    chat, stop = chat_of(name), stop_of(name)
    others = st.sampled_from([i for i in range(len(chat.tokenizer)) if i not in chat.stop_ids])
    said = data.draw(st.lists(st.lists(others, min_size=1, max_size=6), min_size=3, max_size=3))
    ((episode,), sampler) = played(lambda row, n: (*said[n], stop), chat, turns=3)
    ((ids, learned),) = trained([episode])
    assert learned == tuple(i for turn in said for i in (*turn, stop))
    assert ids == episode.token_ids == (*sampler.prompts[-1], *said[-1], stop)


@EACH
def test_halves_of_words_do_not_come_back_through_text(name):
    """What the test above is for: such ids exist in each family."""
    chat = chat_of(name)
    halves = tuple(i for letter in "desk" for i in chat.encode(letter))
    assert chat.encode(chat.text(halves)) != halves


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("gemma", ("role + '\\n'", "role + loop.index ~ '\\n'"), "rewrites earlier turns"),
        ("gemma", ("(loop.index0 % 2 == 0)", "(loop.index0 % 2 == 1)"), "Conversation roles must alternate"),
        ("mistral_v3", ("+ eos_token ", ""), "rewrites earlier turns|without a stop token"),
        ("llama3", ("message.content | trim", "messages[-1].content | trim"), "rewrites earlier turns"),
        ("qwen3", ("'<|im_end|>' + ", ""), "ends a turn without a stop token|rewrites earlier turns"),
    ],
)
def test_templates_that_cannot_be_extended_are_refused_by_name(name, change, problem):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / name)
    assert change[0] in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(*change)
    tokenizer.name_or_path = "a-model"
    with pytest.raises(UsageError, match=f"^model.name: the chat template of a-model .*({problem})") as caught:
        make_chat(tokenizer)
    assert "\n" not in str(caught.value)
