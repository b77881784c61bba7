"""OpenTelemetry: what a run says about itself, as spans, metrics and log events in the namespace `tocsin.*`.

1. `environment`  from the standard `OTEL_*` variables to an SDK that exports, or to nothing
2. `telemetry`    takes events and records one by one, in the monitor's thread or behind a file
3. `spans`        step, generate, score, wait, train, sync and checkpoint, made from events afterwards
4. `gauges`       the newest measured values; `catalogue` lists them
5. `log_events`   diagnostics, actions and coverage

Only `environment` imports the SDK, and only when the environment asks for it; the rest needs opentelemetry-api, whose
calls do nothing without one. Whatever people or models wrote (errors, notes, prompts, completions) is left out.
"""
