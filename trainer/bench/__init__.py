"""Benchmarks of the diagnostics: what is detected, and what that costs.

1. `material`   tasks, and models that imitate a noisy teacher
2. `cases`      what is run: faults in doses with the codes that name them, and healthy runs of many kinds
3. `trial`      one case, trained in a process of its own and kept
4. `harm`       what a fault cost, against the run without it
5. `judge`      what a detector said, and whether it was right
6. `baselines`  other detectors, on the same runs
7. `sham`       actions that change nothing, and what their verdicts say
8. `rates`      shares with intervals that know which runs belong together
9. `score`      the numbers of one detector
10. `detect`    all of it, over a folder
11. `report`    the tables
12. `overhead`  what the diagnostics cost a step
13. `commands`  `tocsin bench`
14. `feeds`     recorded feeds of each fault, for `agents_examples/feeds/`

`autotune`, with `attempt` and `wrong_actions`, measures whether a run that tunes itself is better off.
"""
