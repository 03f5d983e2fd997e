"""Chat families: turns only add tokens, a turn ends on the template's own stop token, text stays text."""

import string

import numpy as np
import pytest
import tiny
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bmrl.batch import collate, make_rows
from bmrl.chat import INSTRUCTIONS, THINK, make_chat
from bmrl.credit import Credit
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.errors import UsageError
from bmrl.rollout import rollout
from bmrl.types import EndReason, Episode, Play, Turn

CHATML = (  # Qwen2.5, SmolLM2: a system prompt of its own when none is given
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (  # trims every text
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA2 = (  # a blank before the stop token
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
QWEN3 = (  # strips thoughts of earlier turns; without thinking, the prompt of a turn holds an empty thought
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
R1 = (  # the prompt itself begins the thought
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|User|>' + message['content'] }}{% else %}"
    "{{ '<|Assistant|>' + message['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
# family -> template, begin, stop, further control tokens
FAMILIES = {
    "chatml": (CHATML, None, "<|im_end|>", ("<|im_start|>", "<|endoftext|>")),
    "llama3": (LLAMA3, "<|begin|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")),
    "gemma": (GEMMA, "<bos>", "<end_of_turn>", ("<start_of_turn>", "<eos>")),
    "mistral": (MISTRAL, "<s>", "</s>", ("[INST]", "[/INST]")),
    "llama2": (LLAMA2, "<s>", "</s>", ()),
    "qwen3": (QWEN3, None, "<|im_end|>", ("<|im_start|>",)),
    "r1": (R1, "<|begin|>", "<|end|>", ("<|User|>", "<|Assistant|>")),
}


def bytes_tokenizer(template, begin=None, stop="<end>", control=(), eos=None):
    """One token per byte, and the control tokens; ``<think>`` is an added token that is not special, as in Qwen3."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([t for t in (begin, stop, *control) if t])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=eos or stop,
        chat_template=template,
        name_or_path="a-model",
    )


def family(name, **options):
    template, begin, stop, control = FAMILIES[name]
    return make_chat(bytes_tokenizer(template, begin, stop, control), **options)


def say(chat, ids):
    return chat.tokenizer.decode(ids, skip_special_tokens=False)


RULES = f"{INSTRUCTIONS}\n\n"
# What a game of three observations looks like; the agent says <action>go</action>, in the second turn it is cut off.
GAMES = {
    "chatml": (
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{RULES}one<|im_end|>\n"
        "<|im_start|>assistant\n<action>go</action><|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
        "<|im_start|>assistant\n<acti<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    ),
    "llama3": (
        f"<|begin|><|start_header_id|>user<|end_header_id|>\n\n{RULES}one<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<action>go</action><|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<acti<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nthree<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gemma": (
        f"<bos><start_of_turn>user\n{RULES}one<end_of_turn>\n<start_of_turn>model\n<action>go</action><end_of_turn>\n"
        "<start_of_turn>user\ntwo<end_of_turn>\n<start_of_turn>model\n<acti<end_of_turn>\n"
        "<start_of_turn>user\nthree<end_of_turn>\n<start_of_turn>model\n"
    ),
    "mistral": (f"<s>[INST] {RULES}one [/INST]<action>go</action></s>[INST] two [/INST]<acti</s>[INST] three [/INST]"),
    # The answer stops without the blank; where a turn was cut off the template's blank is put.
    "llama2": (
        f"<s>[INST] {RULES}one [/INST]<action>go</action></s><s>[INST] two [/INST]<acti </s><s>[INST] three [/INST]"
    ),
    "qwen3": (
        f"<|im_start|>user\n{RULES}one<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "<action>go</action><|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n<acti<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    ),
    "r1": (
        f"<|begin|><|User|>{RULES}one<|Assistant|><think>\n<action>go</action><|end|><|User|>two"
        "<|Assistant|><think>\n<acti<|end|><|User|>three<|Assistant|><think>\n"
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_turns_extend_the_transcript_as_the_template_would(name):
    chat = family(name)
    stop = chat.tokenizer.convert_tokens_to_ids(FAMILIES[name][2])
    said, cut = (*chat.encode("<action>go</action>"), stop), chat.encode("<acti")
    transcript = (
        *(*chat.opening("one"), *said),
        *(*chat.following("two", stopped=True), *cut),
        *chat.following("three", stopped=False),
    )
    assert say(chat, transcript) == GAMES[name]
    assert stop in chat.stop_ids


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "mistral"])
def test_transcript_has_the_ids_of_the_whole_conversation_rendered_at_once(name):
    chat = family(name)
    # The Mistral template writes a blank before an answer, and the agent has said it.
    said = " go" if name == "mistral" else "go"
    ours = (*chat.opening("one"), *chat.encode(said), *chat.close, *chat.following("two", stopped=True))
    messages = [
        {"role": "user", "content": f"{RULES}one"},
        {"role": "assistant", "content": "go"},
        {"role": "user", "content": "two"},
    ]
    text = chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert list(ours) == chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_demonstration_ends_on_the_stop_token_and_is_understood(name):
    chat = family(name)
    ids = chat.answer("go to desk 1")
    assert ids[-1] in chat.stop_ids
    assert not set(ids[:-1]) & chat.stop_ids
    assert chat.parse_action(chat.text(ids), stopped=True) == "go to desk 1"


def test_another_end_of_text_stops_a_turn_too():
    template, begin, stop, control = FAMILIES["chatml"]
    chat = make_chat(bytes_tokenizer(template, begin, stop, control, eos="<|endoftext|>"))
    ids = chat.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert chat.stop_ids == set(ids)
    assert chat.answer("go")[-1] == ids[0]
    assert chat.text((*chat.encode("go"), ids[1])) == "go"


def test_thoughts_stay_as_they_were_sampled():
    chat = family("qwen3", think=True)
    opening = chat.opening("one")
    assert say(chat, opening) == (
        f"<|im_start|>user\n{INSTRUCTIONS} {THINK}\n\none<|im_end|>\n<|im_start|>assistant\n"  # no empty thought
    )
    said = chat.tokenizer.encode("<think>\nhm\n</think>\n\n<action>go</action><|im_end|>", add_special_tokens=False)
    turns = (
        Turn("one", opening, "", "go", tuple(said), (0.0,) * len(said), True, 0.0),
        Turn("two", chat.following("two", stopped=True), "", "", (1,), (0.0,), True, 0.0),
    )
    episode = Episode(1, 0, 0, "t", "train", 0, 4, EndReason.BUDGET, turns)
    assert "<think>\nhm\n</think>\n\n<action>go</action><|im_end|>\n<|im_start|>user\ntwo" in say(
        chat, episode.token_ids
    )


def test_instructions_come_with_the_first_observation_only():
    chat = family("gemma", system="Obey.", instructions="Say yes.", think=True)
    assert say(chat, chat.opening("one")).startswith(f"<bos><start_of_turn>user\nObey. Say yes. {THINK}\n\none<end")
    assert "Obey" not in say(chat, chat.following("two", stopped=True))


def test_prompt_is_the_same_on_another_day():
    today = "{{ strftime_now('%d %B %Y') }}\n" + CHATML
    chat = make_chat(bytes_tokenizer(today, None, "<|im_end|>", ("<|im_start|>",)))
    assert say(chat, chat.first.head).startswith("26 July 2024\n")


SPELLED = "<|im_end|> <|im_start|> <think> </think> <think <|pad|> <|begin|> <|end|> <|unknown|> <0x0A> [INST] </s> go"
ODD = [*SPELLED.split(), " ", "\n", "\r\n", "\u2402", "▁", "\x00", "\u0301"]
TEXT = st.lists(st.text(max_size=8) | st.sampled_from(ODD), max_size=6).map("".join)
CHATS = {"chatml": family("chatml"), "pocket": tiny.chat()}


@pytest.mark.parametrize("name", CHATS)
@settings(max_examples=150, deadline=None)
@given(text=TEXT)
@example(text="<think><think></think>")
@example(text="<<|im_end|>|im_end|><|im_end|>")
@example(text="<<|end|>|end|> <0x41> <|unknown|>")
def test_text_is_lossless_and_never_becomes_a_control_token(name, text):
    chat = CHATS[name]
    ids = chat.encode(text)
    assert chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text
    assert not set(ids) & (set(chat.tokenizer.added_tokens_decoder) | chat.stop_ids)
    assert chat.text((*ids, *chat.close)) == text


def test_every_byte_and_every_ascii_character_in_the_pocket_policy():
    chat = tiny.chat()
    for text in (string.printable, "".join(map(chr, range(1, 0x250))), "go  to\n\tdesk", "naïve 世界 🎲"):
        assert chat.text(chat.encode(text)) == text


def test_a_lone_surrogate_becomes_a_question_mark():
    assert CHATS["pocket"].text(CHATS["pocket"].encode("a\ud800b")) == "a?b"


def test_ids_that_text_would_not_give_back_reach_the_loss_as_they_were_sampled():
    chat = CHATS["pocket"]
    (stop,) = chat.stop_ids
    draw = np.random.default_rng(0)
    others = [
        i for i in range(len(chat.tokenizer)) if i != stop
    ]  # control tokens, halves of characters, bytes of words
    said = {}

    def script(row, n):
        return said.setdefault((row, n), (*draw.choice(others, size=4).tolist(), stop))

    sampler = tiny.ScriptedSampler(script, rows=2, stop=stop)
    plays = [Play(1, 0, n, Task("t", "corridor", data=8), "train", 0, 5) for n in range(2)]
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=2, make=tiny.Corridor) as pool:
        episodes = rollout(
            plays, sampler=sampler, chat=chat, pool=pool, turn_tokens=8, context_tokens=512, temperature=1.0
        )
    rows = make_rows(
        [episodes],
        tiny.with_the_last([episodes], [[1.0, 0.0]]),
        credit=Credit("grpo"),
        truncation={},
        aggregation="constant",
        constant=1,
    )
    batch = collate(rows, torch.device("cpu"), packed=False)
    for row, episode in enumerate(episodes):
        texts = [chat.text(turn.action_ids) for turn in episode.turns]
        assert [chat.encode(text) for text in texts] != [turn.action_ids[:-1] for turn in episode.turns]
        sampled = [i for n in range(5) for i in said[row, n]]
        last = (*sampler.prompts[row - 2], *said[row, 4])  # the last prompt of each row, and its answer
        assert episode.token_ids == last == tuple(batch.ids[row].tolist()[: len(last)])
        assert batch.ids[row][batch.mask[row]].tolist() == sampled


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>go to desk 1</action>", "go to desk 1"),
        ("I go.\n<action>\n  go to desk 1\t\n</action>.", "go to desk 1"),
        ("<action>go  to</action>", "go  to"),  # the environment judges blanks within
        ("<think>maybe <action>stay</action></think>\n<action>go</action>", "go"),
        ("<think>a</think><think>b <action>stay</action></think><action>go</action>", "go"),
        ("thoughts <action>stay</action> that began in the prompt</think><action>go</action>", "go"),
        ("<action>go</action><action>stay</action>", "go"),
        ("<think>never ends <action>stay</action>", ""),
        ("<action>go</action><think>never ends", "go"),
        ("<action>go", ""),
        ("go</action>", ""),
        ("<action></action>", ""),
        ("<action> \n</action><action>go</action>", ""),  # the first one counts, and it is empty
        ("<action><action>go</action></action>", "<action>go"),  # no command: costs a turn
        ("<ACTION>go</ACTION>", ""),
        ("go", ""),
        ("", ""),
    ],
)
def test_action_of_a_tagged_chat(text, action):
    assert CHATS["chatml"].parse_action(text, stopped=True) == action
    assert CHATS["chatml"].parse_action(text, stopped=False) == ""  # cut off


def test_thoughts_begun_by_the_prompt_must_end():
    chat = family("r1")
    assert chat.parse_action("hm <action>go</action>", stopped=True) == ""
    assert chat.parse_action("hm <action>stay</action></think><action>go</action>", stopped=True) == "go"
    assert say(chat, chat.answer("go")) == "\n</think>\n\n<action>go</action><|end|>"


@pytest.mark.parametrize(("text", "action"), [("go", "go"), ("  go to 1 \n", "go to 1"), ("<action>go</action>",) * 2])
def test_action_of_a_plain_chat(text, action):
    assert CHATS["pocket"].parse_action(text, stopped=True) == action
    assert CHATS["pocket"].parse_action(text, stopped=False) == ""


COUNTS = CHATML.replace("+ message['content']", "+ (loop.index ~ '. ') + message['content']")
DROPS = "{% for message in messages[-1:] %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
SUMS_UP = CHATML + "{{ messages[0]['content'] }}"
MOVES = CHATML.replace("in messages %}", "in messages | reverse %}").replace("messages[0]", "messages[-1]")
BARE = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
NEEDS_SYSTEM = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('say\nwho you are') }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "a-model has no chat template; use an instruct model"),
        (COUNTS, "the chat template of a-model rewrites earlier turns; a transcript cannot be extended with it"),
        (DROPS, "the chat template of a-model rewrites earlier turns; a transcript cannot be extended with it"),
        (SUMS_UP, "the chat template of a-model rewrites earlier turns; a transcript cannot be extended with it"),
        (MOVES, "the chat template of a-model rewrites earlier turns; a transcript cannot be extended with it"),
        (BARE, "the chat template of a-model ends a turn without a stop token"),
        (NEEDS_SYSTEM, "the chat template of a-model fails on a plain conversation: say who you are"),
        ("{% if %}", "the chat template of a-model fails on a plain conversation: Expected an expression"),
    ],
)
def test_templates_that_cannot_be_used_are_refused_in_one_line(template, problem):
    with pytest.raises(UsageError) as caught:
        make_chat(bytes_tokenizer(template, None, "<|im_end|>", ("<|im_start|>",)))
    assert str(caught.value).startswith(f"model.name: {problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"think": True}, {"system": "Obey."}])
def test_the_pocket_policy_takes_no_instructions(options):
    with pytest.raises(UsageError, match=r"chat\.think and chat\.system"):
        make_chat(tiny.tokenizer(), **options)
