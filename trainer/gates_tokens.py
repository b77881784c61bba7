"""What the model reads and where it stops: chat template and BOS, end-of-sequence tokens, vocabulary.

Judged on the prompts as they will be trained on, and on what the template makes of one made-up conversation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tocsin.diagnostics.proposals import look
from tocsin.schemas.check import Gate
from tocsin.schemas.config import DataConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.trainer.data import Prompt
from tocsin.trainer.gates import fact, finding, gate, spread
from tocsin.trainer.messages import SamplerFacts

QUESTION: Final = "What is two and two?"
ANSWER: Final = "Tocsinfour"
"""Of the made-up conversation: a word that no template contains."""


@dataclass(frozen=True)
class Vocabulary:
    """What the learner's model and tokenizer say about tokens, and the prompts made with them."""

    model: Any
    tokenizer: Any
    data: DataConfig
    prompts: Sequence[Prompt]
    eos_ids: Sequence[int]
    """Tokens that end a completion for the learner."""

    @cached_property
    def asked(self) -> str:
        """The made-up question as the model would see it, ready to answer."""
        return self._render(self._question, answer_next=True)

    @cached_property
    def bare(self) -> str:
        """The same without the generation prompt."""
        return self._render(self._question, answer_next=False)

    @cached_property
    def answered(self) -> str:
        """The conversation with its answer; empty when the template cannot render one."""
        try:
            text = self._render([*self._question, {"role": "assistant", "content": ANSWER}], answer_next=False)
        except Exception:  # protects the check from a template that only takes questions; templates raise anything
            return ""
        return text if ANSWER in text else ""

    @property
    def turn_end(self) -> int | None:
        """First special token after an answer, by the template; None when there is none."""
        if not self.data.chat_template or not self.answered:
            return None
        rest = self.answered.rpartition(ANSWER)[2]
        ids = self.tokenizer(rest, add_special_tokens=False)["input_ids"]
        return next((int(token) for token in ids if token in self.special), None)

    @property
    def special(self) -> frozenset[int]:
        """Ids of the tokenizer's special tokens."""
        added = {index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset({*added, *self.tokenizer.all_special_ids})

    @property
    def stated_eos(self) -> list[int]:
        """What the model's generation settings name; empty when they name nothing."""
        stated = self.model.generation_config.eos_token_id
        return stated if isinstance(stated, list) else [] if stated is None else [stated]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows of the embedding and of the output layer."""
        layers = (self.model.get_input_embeddings(), self.model.get_output_embeddings())
        embedding, output = (int(layer.weight.shape[0]) for layer in layers)
        return embedding, output

    def shown(self, ids: Sequence[int]) -> str:
        """Ids with their tokens: `151645 <|im_end|>`."""
        texts = self.tokenizer.convert_ids_to_tokens(list(ids))
        return ", ".join(f"{index} {text}" if text else f"{index}" for index, text in zip(ids, texts, strict=True))

    @property
    def _question(self) -> list[dict[str, str]]:
        system = self.data.system_prompt
        first = [] if system is None else [{"role": "system", "content": system}]
        return [*first, {"role": "user", "content": QUESTION}]

    def _render(self, messages: list[dict[str, str]], *, answer_next: bool) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer_next))


def template_gate(words: Vocabulary) -> Gate:
    """One BOS at most, the generation prompt at the end, the system prompt inside."""
    looked_at = spread(words.prompts)
    found = list(_bos(words, looked_at))
    if words.data.chat_template:
        found += [*_generation_prompt(words), *_system_prompt(words)]
        form = "rendered by the chat template"
    else:
        found += _unused_template(words, looked_at)
        form = "plain text"
    bos = words.tokenizer.bos_token_id
    begin = sum(_starts(prompt, bos) > 0 for prompt in looked_at)
    summary = f"{len(looked_at)} prompts are {form}, {begin} begin with BOS"
    problems = "".join(f"; {item.summary}" for item in found if item.severity != "info")
    return gate("chat template", summary + problems, found, measured={"prompts": len(looked_at), "with_bos": begin})


def _starts(prompt: Prompt, bos: int | None) -> int:
    """How many BOS tokens a prompt begins with."""
    count = 0
    while bos is not None and count < len(prompt.token_ids) and prompt.token_ids[count] == bos:
        count += 1
    return count


def _bos(words: Vocabulary, looked_at: Sequence[Prompt]) -> Iterator[Diagnostic]:
    bos, n = words.tokenizer.bos_token_id, len(looked_at)
    doubled = sum(_starts(prompt, bos) > 1 for prompt in looked_at)
    if doubled:
        remedy = (
            "let the template write BOS once"
            if words.data.chat_template
            else "take BOS out of the prompts, or give messages and set data.chat_template = true"
        )
        yield finding(
            "GEN008",
            "critical" if doubled == n else "warning",
            f"{doubled} of {n} prompts begin with more than one BOS token",
            fact("prompts that begin with two BOS tokens", doubled, ">", 0, unit="prompts", n=n),
            look("write-bos-once", remedy),
            where="data",
        )
    adds = words.tokenizer(QUESTION)["input_ids"][:1] == [bos]
    if words.data.chat_template and adds and not any(_starts(prompt, bos) for prompt in looked_at):
        yield finding(
            "GEN008",
            "warning",
            f"The tokenizer puts BOS before a plain text and the chat template writes none into {n} prompts",
            fact("prompts that begin with BOS", 0, "<", n, unit="prompts", n=n),
            look("add-bos", "write the BOS token at the start of the chat template"),
            where="tokenizer",
        )


def _generation_prompt(words: Vocabulary) -> Iterator[Diagnostic]:
    """Some templates have no header before an answer, so what follows the prompt in a conversation decides."""
    if words.asked != words.bare or not words.answered.startswith(words.asked):
        return
    header = words.answered[len(words.asked) :].partition(ANSWER)[0].strip()
    if header:
        yield finding(
            "GEN008",
            "critical",
            f"The chat template ignores add_generation_prompt: prompts end {len(header)} characters before an answer",
            fact("characters between prompt and answer", len(header), ">", 0, unit="characters"),
            look(
                "add-generation-prompt", "have the chat template end with the header of an answer when it is asked to"
            ),
            where="tokenizer",
        )


def _system_prompt(words: Vocabulary) -> Iterator[Diagnostic]:
    system = (words.data.system_prompt or "").strip()
    if system not in words.asked:
        yield finding(
            "GEN008",
            "critical",
            "The chat template leaves out the system prompt",
            fact("characters of data.system_prompt in a prompt", 0, "<", len(system), unit="characters"),
            look("move-system-prompt", "drop data.system_prompt, or put its text into the prompts"),
            where="tokenizer",
        )


def _unused_template(words: Vocabulary, looked_at: Sequence[Prompt]) -> Iterator[Diagnostic]:
    """Advice, because a base model may have a template that it was never trained with."""
    marks = words.special - {words.tokenizer.bos_token_id}
    rendered = any(marks & set(prompt.token_ids.tolist()) for prompt in looked_at)
    if words.tokenizer.chat_template is not None and not rendered:
        yield finding(
            "GEN008",
            "info",
            "The tokenizer has a chat template, and the prompts are plain text without it",
            fact("data.chat_template", 0, "==", 0),
            look("render-prompts", "set data.chat_template = true if the model was tuned on conversations"),
            where="tokenizer",
        )


def eos_gate(words: Vocabulary, sampler: SamplerFacts | None = None) -> Gate:
    """Learner and sampler stop at the same tokens, and these are the ones that end an answer."""
    mine = list(words.eos_ids)
    found = [*_eos_disagreement(words), *_eos_outside(words), *_turn_end(words)]
    who = "the learner stops"
    if sampler is not None:
        found += _sampler_eos(mine, sampler)
        same = sorted(sampler.eos_ids) == mine
        who = "both sides stop" if same else f"the sampler stops at {words.shown(sampler.eos_ids)}; the learner stops"
    problems = "".join(f"; {item.summary}" for item in found)
    return gate("end of sequence", f"{who} at {words.shown(mine)}{problems}", found, measured={"tokens": len(mine)})


def _eos_disagreement(words: Vocabulary) -> Iterator[Diagnostic]:
    own, stated = words.tokenizer.eos_token_id, words.stated_eos
    if stated and own not in stated:
        yield finding(
            "GEN002",
            "warning",
            f"The tokenizer ends a text with token {own}, and generation_config.json does not name it",
            fact("tokenizer.eos_token_id in generation_config", 0, "<", 1, n=len(stated)),
            look("name-eos", "make tokenizer and generation_config.json agree on eos_token_id"),
            where="tokenizer",
        )


def _eos_outside(words: Vocabulary) -> Iterator[Diagnostic]:
    rows = words.rows[1]
    outside = [index for index in words.eos_ids if index >= rows]
    if outside:
        yield finding(
            "GEN002",
            "critical" if len(outside) == len(words.eos_ids) else "warning",
            f"{len(outside)} of {len(words.eos_ids)} end-of-sequence tokens are beyond the {rows} tokens of the model",
            fact("largest end-of-sequence id", max(outside), ">=", rows),
            look("correct-eos", "correct eos_token_id in generation_config.json, or resize the embeddings"),
            where="model",
        )


def _turn_end(words: Vocabulary) -> Iterator[Diagnostic]:
    end = words.turn_end
    if end is not None and end not in words.eos_ids:
        yield finding(
            "GEN002",
            "warning",
            f"The chat template ends an answer with token {end}, at which nothing stops",
            fact("turn-ending token in the end-of-sequence tokens", 0, "<", 1, n=len(words.eos_ids)),
            look("stop-at-turn-end", f"add {end} to eos_token_id in generation_config.json"),
            where="tokenizer",
        )


def _sampler_eos(mine: Sequence[int], sampler: SamplerFacts) -> Iterator[Diagnostic]:
    missing, extra = set(mine) - set(sampler.eos_ids), set(sampler.eos_ids) - set(mine)
    if missing or extra:
        yield finding(
            "GEN002",
            "critical" if missing else "warning",
            f"The sampler does not stop at {len(missing)} of the learner's {len(mine)} end-of-sequence tokens, and "
            f"stops at {len(extra)} others",
            fact("end-of-sequence tokens on one side only", len(missing) + len(extra), ">", 0, unit="tokens"),
            look("align-eos", "give sampler and learner the same generation_config.json and tokenizer"),
            where="sampler",
        )


def vocabulary_gate(words: Vocabulary, sampler: SamplerFacts | None = None) -> Gate:
    """Every token has its row. More rows than tokens are normal: embeddings are padded to round numbers."""
    tokens = max(words.tokenizer.get_vocab().values()) + 1
    rows = min(words.rows)
    used = 1 + max([*words.eos_ids, *(int(prompt.token_ids.max()) for prompt in words.prompts)])
    found = []
    if tokens > rows:
        found.append(
            finding(
                "CHK001",
                "critical" if used > rows else "warning",
                f"The tokenizer has {tokens} tokens and the model rows for {rows}; the prompts use up to {used}",
                fact("tokens of the tokenizer", tokens, ">", rows, unit="tokens"),
                look("resize-embeddings", "take the tokenizer of this model, or resize the model's embeddings"),
                where="model",
            )
        )
    summary = f"{tokens} tokens, {rows} rows in the model"
    if sampler is not None:
        summary += f", {sampler.vocab_size} in the sampler"
        if sampler.vocab_size != words.rows[1]:
            found.append(
                finding(
                    "CHK001",
                    "critical",
                    f"The sampler has {sampler.vocab_size} output rows and the learner {words.rows[1]}",
                    fact("output rows of the sampler", sampler.vocab_size, "!=", words.rows[1], unit="tokens"),
                    look("same-model", "start the sampler with the model of the learner"),
                    where="sampler",
                )
            )
    measured = {"tokens": tokens, "model_rows": rows, "used": used}
    return gate("vocabulary", summary, found, measured={**measured, **_sampler_rows(sampler)})


def _sampler_rows(sampler: SamplerFacts | None) -> dict[str, int]:
    return {} if sampler is None else {"sampler_rows": sampler.vocab_size}
