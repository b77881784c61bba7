"""The detectors that ours is compared with. Each reads the events of a recorded run and says what it finds, and when.

1. `base`         what an alarm is, and what a detector is
2. `readings`     events to the metrics that trainers log, under the names that TRL and verl give them
3. `limits`       one threshold on one metric
4. `limit_table`  the thresholds that people set today, with the source of each number
5. `thresholds`   the detector made of them
6. `rival`        how a package of somebody else's is imported and kept quiet
7. `rldoctor`     rl-doctor 0.2.0
8. `rlwatch`      rlwatch 0.5.1
"""
