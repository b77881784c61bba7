#!/usr/bin/env bash
# Follows a run until it is over and applies what its warnings propose: act.sh [RUN] [further options of `tocsin`]
# Exit code of `tocsin feed`: 0 clear, 1 something is open, 2 bad input, 3 cannot tell. Needs jq.
#
# One action at a time, each at most once per finding; what another finding explains is left alone.
# ALLOW="automatic" leaves alone what somebody should agree to first. AGENT is the name that the run will show.
set -euo pipefail

run=${1:-latest}
shift || true
declare -A tried # a finding that grows is reported again

choose='select(.record == "diagnostic" and .state == "firing" and .reason != "run_ended")
  | select([.relations[].kind] | index("explained_by") | not)
  | .summary as $why
  | first(.actions[] | select(.preferred and .disabled == null)
      | select(.applicability as $kind | $allow | split(" ") | index($kind)))
  | {id, title, $why}'

tocsin feed "$run" "$@" --min-severity warning --follow --json |
  jq --unbuffered --compact-output --arg allow "${ALLOW:-automatic review}" "$choose" |
  while read -r action; do
    id=$(jq --raw-output .id <<<"$action")
    if [[ -n ${tried[$id]:-} ]]; then
      continue
    fi
    tried[$id]=yes
    jq --raw-output '"\(.why)\n  -> \(.title)"' <<<"$action"
    # The key makes a repetition harmless: this script may be killed and started again at any moment.
    tocsin act "$run" "$id" "$@" --yes --wait --as "agent:${AGENT:-act.sh}" --idempotency-key "$id" \
      --note "preferred action, applied by act.sh" || echo "  exit code $?: not the target, refused, or no verdict"
  done
