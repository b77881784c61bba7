#!/usr/bin/env bash
# Follows a run and applies what its warnings propose, one action at a time: act.sh [RUN] [further options of `tocsin`]
# Exit code of the last poll: 0 clear, 1 something is open, 2 bad input, 3 cannot tell. Needs jq.
#
# ALLOW="automatic" leaves alone what somebody should agree to first. AGENT is the name that the run will show.
set -euo pipefail

run=${1:-latest}
shift || true
cursor=()

# The preferred action of the newest record of everything that is firing and not explained by something else.
choose='[.[] | select(.record == "diagnostic")] | group_by(.id) | map(last)
  | map(select(.state == "firing" and (.severity == "warning" or .severity == "critical")))
  | map(select([.relations[].kind] | index("explained_by") | not))
  | map(.summary as $why | .actions[]
      | select(.preferred and .disabled == null)
      | select(.applicability as $kind | $allow | split(" ") | index($kind))
      | {id, title, $why})
  | first // empty'

while true; do
  code=0
  records=$(tocsin feed "$run" "$@" --json "${cursor[@]}") || code=$?
  if [[ -z $records ]]; then
    exit "$code" # no such run, or bad input: the reason is on standard error
  fi
  page=$(tail -n 1 <<<"$records")
  cursor=(--since "$(jq --raw-output .next_cursor <<<"$page")")

  action=$(jq --slurp --arg allow "${ALLOW:-automatic review}" "$choose" <<<"$records")
  if [[ -n $action ]]; then
    id=$(jq --raw-output .id <<<"$action")
    jq --raw-output '"\(.why)\n  -> \(.title)"' <<<"$action"
    # The key makes a repetition harmless: this script may be killed and started again at any moment.
    tocsin act "$run" "$id" "$@" --yes --wait --as "agent:${AGENT:-act.sh}" --idempotency-key "$id" \
      --note "preferred action, applied by act.sh" || echo "  exit code $?: not the target, refused, or no verdict"
    continue # the verdict took a while; the next page has what happened meanwhile
  fi

  if jq --exit-status '.has_more' <<<"$page" >/dev/null; then
    continue
  fi
  if jq --exit-status '.writer.state | . == "ended" or . == "dead"' <<<"$page" >/dev/null; then
    exit "$code"
  fi
  sleep "${INTERVAL:-2}"
done
