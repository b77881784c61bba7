"""The diagnostics. An event's way, file after file:

1. `monitor`     stamps it, writes it, and shows it to the engine, in a thread of its own
2. `feed`        the single writer of `events.jsonl` and `feed.jsonl` (`jsonl`, `lock`)
3. `features`    bounded windows over the events, shared by all rules (`feature` says what one is; `rewards`,
                 `outcome`, `updates`, `freshness`, `syncs`, `engines`, `waits`, `memory`)
4. `rule`        what a rule is; `rules/` holds one file per rule, `proposals` and `knob_patch` compute their answers,
                 `modes` is the registry of failure modes, `gaps` says why some have no rule, `catalogue` documents
                 all of them; `added_rules` finds those of other packages, `vetting` says what is asked of them
5. `engine`      asks the rules and keeps what is open (`evaluation`, `lifecycle`, `conclusion`, `selection`), says
                 what it has cost (`spending`) and which finding explains which (`causes`), bounds what is said
                 (`storm`, `silences`), and follows
                 actions to their verdict (`action_log`, `trials`, `readings`, `verdicts`, `estimates`)
6. `render`      a record as a line of text
7. `reader`      pages for whoever polls, and whether anybody still writes (`liveness`, `runs`)
8. `cli`         the `tocsin` command (`status`, `display`, `snapshot`, `follow`, `options`, `output`, `errors`,
                 `plugins`; `cli_docs` writes its page; `cli_skill` prints `SKILL.md`); `watch` draws a run live
                 (`history`, `panel`)
9. `control`     the asking side of changes: `admission` judges a request, `actors` says who asks, `answers`
                 what became of it, `cli_control` has the commands
10. `serve/`     the same questions and changes over HTTP and MCP
11. `autotune`   decides which action to take, from what `tuner_memory` knows of the feed; the trainer asks for it
12. `outlets`    what leaves the machine: `alerts/` tells receivers, `otel/` exports; `cli_send` does both from outside
13. `replay`     the engine over recorded events (`recording`); `measure` says what it costs (`clock`)

The engine and the rules are pure: no clock, no input or output. Nothing here imports a machine-learning library.
"""
