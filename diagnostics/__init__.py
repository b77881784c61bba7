"""The diagnostics. An event's way, file after file:

1. `monitor`     stamps it, writes it, and shows it to the engine, in a thread of its own
2. `feed`        the single writer of `events.jsonl` and `feed.jsonl` (`jsonl`, `lock`)
3. `features`    bounded windows over the events, shared by all rules (`feature` says what one is; `rewards`,
                 `outcome`, `updates`, `freshness`, `waits`, `memory`)
4. `rule`        what a rule is; `rules/` holds one file per rule, `proposals` and `knob_patch` compute their answers,
                 `catalogue` documents them
5. `engine`      asks the rules and keeps what is open (`evaluation`, `lifecycle`, `conclusion`, `selection`), says
                 which finding explains which (`causes`), bounds what is said (`storm`, `silences`), and follows
                 actions to their verdict (`action_log`, `trials`, `readings`, `verdicts`, `estimates`)
6. `render`      a record as a line of text
7. `reader`      pages for whoever polls, and whether anybody still writes (`liveness`, `runs`)
8. `cli`         the `tocsin` command (`status`, `display`, `snapshot`, `follow`, `options`, `output`, `errors`,
                 `plugins`; `cli_docs` writes its page); `watch` draws a run live (`history`, `panel`)
9. `control`     the asking side of changes: `admission` judges a request, `cli_control` has the commands
10. `replay`     the engine over recorded events (`recording`); `measure` says what it costs (`clock`)

The engine and the rules are pure: no clock, no input or output. Nothing here imports a machine-learning library.
"""
