"""The two doors of a run on the network, HTTP and MCP, over one layer of operations. A question's way:

1. `commands`    `tocsin serve` and `tocsin mcp`; `tokens` says who may change a run, and under which name
2. `guard`       what every HTTP request must pass: Host, Origin, token, size of the body, time
3. `app`         the HTTP door: `routes` is the table of what can be asked, `openapi` the same table as a document,
                 `stream` the feed as server-sent events, `problems` every way to fail as one document
4. `tools`       the MCP door: the same operations as tools and resources; `texts` says their answers in few words
5. `operations`  what can be asked of a run, from the files that the command line reads as well; `changes` asks at the
                 control door; `untrusted` keeps back text of models, data and logs
6. `waiting`     a poll that waits for something new, within a bound

`pollers` measures many pollers at once. Nothing here changes a run; the trainer alone does, at its control door.
"""
