"""Alerts: who is told of a warning, once, and that it is over.

1. `address`       where a receiver is, its secrets taken from the environment
2. `book`          what a receiver was told of: a record of the feed becomes a message, or nothing
3. `post`          one POST, classified, and tried again with growing pauses
4. `messages`      webhook and Slack: a bounded queue of messages
5. `alertmanager`  Prometheus Alertmanager: the whole state, told anew in time
6. `delivery`      all receivers of a run, each with a thread of its own

A receiver that is slow, dead or wrong costs one line and never the run. Nothing that a model, a data set or a person
wrote is sent: summaries are made of numbers.
"""
