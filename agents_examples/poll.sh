#!/usr/bin/env bash
# Follows the findings of a run until it is over: poll.sh [RUN] [further options of `tocsin feed`]
# Exit code of the last poll: 0 clear, 1 something is open, 2 bad input, 3 cannot tell. Needs jq.
set -euo pipefail

run=${1:-latest}
shift || true
cursor=()

while true; do
  code=0
  records=$(tocsin feed "$run" "$@" --json "${cursor[@]}") || code=$?
  if [[ -z $records ]]; then
    exit "$code" # no such run, or bad input: the reason is on standard error
  fi

  jq --raw-output 'select(.record == "diagnostic")
    | "step \(.last.step): \(.state) \(.severity) \(.code) \(.summary)",
      (.actions[] | select(.preferred) | "  try: \(.title) [\(.applicability)]")' <<<"$records"

  page=$(tail -n 1 <<<"$records")
  cursor=(--since "$(jq --raw-output .next_cursor <<<"$page")")
  if jq --exit-status '.has_more' <<<"$page" >/dev/null; then
    continue
  fi
  if jq --exit-status '.writer.state | . == "ended" or . == "dead"' <<<"$page" >/dev/null; then
    exit "$code"
  fi
  sleep "${INTERVAL:-5}"
done
