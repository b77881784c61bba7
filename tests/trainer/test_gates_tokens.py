"""Chat template and BOS, end-of-sequence tokens, vocabulary: sound ones pass, planted defects do not."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.trainer.prompts import prompt
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.check import Gate
from tocsin.schemas.config import DataConfig
from tocsin.trainer.data import Prompt
from tocsin.trainer.gates_tokens import Vocabulary, eos_gate, template_gate, vocabulary_gate
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import SamplerFacts
from tocsin.trainer.models import eos_ids
from tocsin.trainer.prompts import PromptSet, load_prompt_sets

TOKENS = ("<unk>", "<bos>", "<eos>", "<turn>", "<end>", "user", "model", "two")
TURNS = "{% for m in messages %}<turn> {{ m.role }} {{ m.content }} <end> {% endfor %}"
ASKED = "{% if add_generation_prompt %}<turn> model {% endif %}"
TEMPLATE = "<bos> " + TURNS + ASKED
QUIET = "{% for m in messages if m.role != 'system' %}<turn> {{ m.role }} {{ m.content }} <end> {% endfor %}" + ASKED
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[ {{ m.content }} ]{% else %} {{ m.content }} <eos>{% endif %}"
    "{% endfor %}"
)


def tokenizer(template: str | None = None, *, adds_bos: bool = False) -> Any:
    """A token per word. `adds_bos` puts one before every plain text, as many tokenizers do."""
    inner = Tokenizer(models.WordLevel({token: index for index, token in enumerate(TOKENS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<turn>", "<end>"],
    )
    made.chat_template = template
    return made


def model(rows: int = len(TOKENS), eos: Any = (2, 4)) -> Any:
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=rows,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            eos_token_id=None,
            bos_token_id=None,
        )
    )
    made.generation_config.eos_token_id = None if eos is None else list(eos)
    return made


def words(
    template: str | None = TEMPLATE,
    texts: tuple[str, ...] = ("two", "two two"),
    *,
    adds_bos: bool = True,
    net: Any = None,
    **data: Any,
) -> Vocabulary:
    """Vocabulary of a run on `texts`, tokenised as the run does it."""
    chat, used = template is not None, tokenizer(template, adds_bos=adds_bos)
    config = DataConfig(train="x", chat_template=data.pop("chat_template", chat), **data)
    if config.chat_template:
        messages = [[{"role": "user", "content": text}] for text in texts]
        texts = tuple(used.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in messages)
    rows = [used(text, add_special_tokens=not config.chat_template)["input_ids"] for text in texts]
    net = model() if net is None else net
    return Vocabulary(net, used, config, [prompt(i, ids) for i, ids in enumerate(rows)], eos_ids(net, used))


def codes(gate: Gate) -> list[tuple[str, str]]:
    return [(found.code, found.severity) for found in gate.findings]


def test_a_template_that_writes_bos_once_passes_whatever_the_tokenizer_adds_to_plain_text():
    gate = template_gate(words())
    assert (gate.outcome, gate.findings) == ("passed", [])
    assert gate.summary == "2 prompts are rendered by the chat template, 2 begin with BOS"


def test_prompts_with_bos_and_a_tokenizer_that_adds_another_are_refused():
    gate = template_gate(words(None, ("<bos> two", "<bos> two two")))
    assert (gate.outcome, codes(gate)) == ("failed", [("GEN008", "critical")])
    assert gate.findings[0].summary == "2 of 2 prompts begin with more than one BOS token"
    assert "take BOS out of the prompts" in gate.findings[0].actions[0].title


def test_a_template_that_writes_bos_twice_is_refused():
    gate = template_gate(words("<bos> " + TEMPLATE))
    assert codes(gate) == [("GEN008", "critical")]
    assert "let the template write BOS once" in gate.findings[0].actions[0].title


def test_a_doubled_bos_in_some_prompts_is_a_warning():
    assert codes(template_gate(words(None, ("<bos> two", "two")))) == [("GEN008", "warning")]


def test_a_template_without_the_bos_that_plain_text_gets_is_a_warning():
    assert codes(template_gate(words(TURNS + ASKED))) == [("GEN008", "warning")]
    assert codes(template_gate(words(TURNS + ASKED, adds_bos=False))) == []


def test_a_template_without_a_generation_prompt_is_refused_unless_answers_have_no_header():
    gate = template_gate(words("<bos> " + TURNS))
    assert codes(gate) == [("GEN008", "critical")]
    assert "ignores add_generation_prompt: prompts end 16 characters before an answer" in gate.findings[0].summary
    assert codes(template_gate(words("<bos> " + BRACKETS))) == []


def test_a_template_that_drops_the_system_prompt_is_refused():
    assert codes(template_gate(words("<bos> " + QUIET, system_prompt="be brief"))) == [("GEN008", "critical")]
    assert codes(template_gate(words("<bos> " + QUIET))) == []
    assert codes(template_gate(words(TEMPLATE, system_prompt="be brief"))) == []


def test_a_template_that_renders_questions_only_is_not_judged_by_answers():
    fussy = "{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}<bos> " + TURNS
    assert template_gate(words(fussy)).findings == []
    assert eos_gate(words(fussy)).findings == []


def test_plain_text_beside_an_unused_template_is_advice_unless_it_was_rendered_before():
    assert codes(template_gate(words(TEMPLATE, chat_template=False))) == [("GEN008", "info")]
    assert codes(template_gate(words(TEMPLATE, ("<turn> user two <end>",), chat_template=False))) == []


def test_both_sides_that_stop_at_the_same_tokens_pass():
    gate = eos_gate(words(), SamplerFacts("x", (2, 4), len(TOKENS)))
    assert (gate.outcome, gate.findings) == ("passed", [])
    assert gate.summary == "both sides stop at 2 <eos>, 4 <end>"


@pytest.mark.parametrize(
    ("eos", "severity", "part"),
    [
        ((4,), "warning", "generation_config.json does not name it"),
        ((2,), "warning", "ends an answer with token 4, at which nothing stops"),
        ((2, 4, 99), "warning", "1 of 3 end-of-sequence tokens are beyond the 8 tokens of the model"),
    ],
)
def test_end_of_sequence_tokens_that_do_not_fit_together_are_found(eos: tuple[int, ...], severity: str, part: str):
    gate = eos_gate(words(net=model(eos=eos)))
    assert codes(gate) == [("GEN002", severity)]
    assert part in gate.findings[0].summary


def test_a_model_that_states_no_end_of_sequence_takes_the_tokenizers():
    assert codes(eos_gate(words("<bos> " + BRACKETS, net=model(eos=None)))) == []


@pytest.mark.parametrize(("theirs", "severity"), [((2,), "critical"), ((2, 3, 4), "warning")])
def test_a_sampler_that_stops_elsewhere_is_found(theirs: tuple[int, ...], severity: str):
    gate = eos_gate(words(), SamplerFacts("x", theirs, len(TOKENS)))
    assert codes(gate) == [("GEN002", severity)]
    assert gate.findings[0].labels == {"component": "sampler"}


def test_padded_embeddings_pass():
    gate = vocabulary_gate(words(net=model(rows=64)), SamplerFacts("x", (2, 4), 64))
    assert (gate.outcome, gate.summary) == ("passed", "8 tokens, 64 rows in the model, 64 in the sampler")


def test_fewer_rows_than_tokens_are_refused_when_the_prompts_use_them():
    assert codes(vocabulary_gate(words(net=model(rows=7, eos=(2, 4))))) == [("CHK001", "critical")]
    unused = words(texts=("user",), net=model(rows=7, eos=(2, 4)))
    assert codes(vocabulary_gate(unused)) == [("CHK001", "warning")]


def test_a_sampler_with_another_vocabulary_is_refused():
    gate = vocabulary_gate(words(), SamplerFacts("x", (2, 4), 64))
    assert codes(gate) == [("CHK001", "critical")]


def test_the_tiny_policy_passes(tiny_policy: TinyPolicy):
    config = tiny_config(tiny_policy)
    learner = Learner(config, tiny_policy.model, config.knobs)
    train: PromptSet = load_prompt_sets(config, learner.tokenizer, learner.max_length)[0]
    prompts: list[Prompt] = train.prompts
    vocabulary = Vocabulary(learner.model, learner.tokenizer, config.data, prompts, learner.eos_ids)
    facts = SamplerFacts("x", (1,), 13)
    for gate in (template_gate(vocabulary), eos_gate(vocabulary, facts), vocabulary_gate(vocabulary, facts)):
        assert (gate.outcome, gate.findings) == ("passed", []), gate.summary
