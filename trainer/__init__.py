"""The asynchronous GRPO trainer. A rollout's way, file after file:

1.  `prompts`          a row of the data becomes a prompt, in an endless order fixed by the seed (`sources`)
2.  `slots`            a group may start only in a slot, which is what bounds staleness
3.  `rollout`          the rollout process: slots to scored groups (`scoring`, `pipes`, `messages`, `activity`)
4.  `samplers`         what it asks of a sampler: a local process (`sampler` is the hand on it, `local_sampler` and
                       `sampling` are that process) or vLLM servers (`vllm`)
5.  `rewards`          completions to rewards, in processes that can be killed (`reward_workers`, `verifiers`)
6.  `rollout_client`   the learner's side: the queue, the ledger (`ledger`), and the replacement of a lost process
7.  `advantages`       rewards of a group to advantages and token weights
8.  `batching`         samples to padded micro-batches under a token budget
9.  `loss`             log-probs to the loss (`stats` sums up its tokens, `batch_report` its groups)
10. `learner`          gradients to one optimizer step, watched by `coordinates` (`devices`, `nvml` measure its memory)
11. `sync`             the new weights back to the sampler, with a probe that proves their arrival (`weights`, `digest`)
12. `loop`             the step that goes through all of it; `run` wires it, `launch` and `start` begin it, `checkpoint`
                       saves it

What a step leaves behind: completions in `rollout_store`, what `texts` counts in them, held-out results by
`evaluation`, memory and load by `resources`, the folder and its manifest by `run_folder`. `run_setup` is the launch as
the first event states it.

`control` is the door for changes from outside: it reads requests (`control_inbox`), answers them, and carries them out
between two steps; `control_memory` is what a resumed run knows of earlier ones. `tuner` goes through the same door: the
hands of the auto-tuner, whose policy is `tocsin.diagnostics.autotune`.

`data` holds the types that are handed on. `models` loads a policy, the same way for learner and sampler. `processes`
starts children, `signals` hears Ctrl-C and SIGTERM, and `preflight` refuses what cannot work before torch is imported.
`gates_launch` looks at everything else that must hold before the first step (`gates_*`), and `check` is `tocsin check`,
which looks at the sampler as well. `commands` is `tocsin train` and `tocsin demo`; `demo`, `demo_task` and `demo_model`
are the embedded default.
`faults` holds what `[fault]` plants, by the place that asks. `progress` and `summary` show the `history` of
`tocsin.diagnostics` to a person.
"""
