#!/usr/bin/env bash
# TPU VMs of any slice size, from creation to results. Needs gcloud, logged in, with a project set.
#
#   launch/tpu_vm.sh [--dry-run] COMMAND
#
#   create           make the slice: PROVISION=on-demand (default), spot, or queued (waits in line for capacity)
#   status           READY, PREEMPTED, ... as the cloud says
#   install          copy this checkout to all workers, install it, mount the bucket
#   run ARGS...      start `python -m lanpo_jax.main --distributed ARGS` on all workers, in the background
#   log              follow the first worker's output
#   stop             SIGTERM: the step ends, the run is saved and exits
#   keep ARGS...     create, install, run, and again after every preemption, until the run has ended
#   fetch RUN        copy a run's folder back from the first worker
#   delete           remove the slice (it costs money until then)
#
# --dry-run prints the commands instead of running them. Settings from the environment: TPU_NAME, ZONE, ACCELERATOR
# (e.g. v5litepod-32), RUNTIME, PROVISION, BUCKET (a storage bucket that becomes the folder runs/ of every worker:
# checkpoints of slices with several workers need one, and it is what outlives a preemption), POLL (seconds).
# Not yet run on hardware by the authors; a test drives it against a stand-in for gcloud.
set -euo pipefail

NAME=${TPU_NAME:-lanpo}
ZONE=${ZONE:-us-west4-a}
ACCELERATOR=${ACCELERATOR:-v5litepod-8}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}
PROVISION=${PROVISION:-on-demand}
BUCKET=${BUCKET:-}
POLL=${POLL:-60}
ROOT=$(cd "$(dirname "$0")/.." && pwd)
DRY=

usage() { sed -n '2,22p' "$0"; exit 1; }

do_it() {
  if [ -n "$DRY" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

tpu() { do_it gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }

on() { # on WORKER COMMAND
  tpu ssh "$NAME" --worker="$1" --command="$2"
}

create() {
  local size=(--accelerator-type="$ACCELERATOR" --zone="$ZONE")
  case "$PROVISION" in
  on-demand) do_it gcloud compute tpus tpu-vm create "$NAME" "${size[@]}" --version="$RUNTIME" ;;
  spot) do_it gcloud compute tpus tpu-vm create "$NAME" "${size[@]}" --version="$RUNTIME" --spot ;;
  queued)
    do_it gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" "${size[@]}" \
      --runtime-version="$RUNTIME" --spot
    while [ -z "$DRY" ] && [ "$(status)" != READY ]; do sleep "$POLL"; done ;;
  *) echo "PROVISION=$PROVISION is not known; there are: on-demand, spot, queued." >&2; exit 1 ;;
  esac
}

delete() {
  if [ "$PROVISION" = queued ]; then
    do_it gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
  else
    tpu delete "$NAME" --quiet
  fi
}

status() {
  if [ -n "$DRY" ]; then tpu describe "$NAME" --format="value(state)"; return; fi
  tpu describe "$NAME" --format="value(state)" 2>/dev/null || echo NONE
}

install() {
  local archive
  archive=$(mktemp --suffix=.tgz)
  git -C "$ROOT" archive --format=tgz -o "$archive" HEAD
  tpu scp "$archive" "$NAME":lanpo_jax.tgz --worker=all
  rm -f "$archive"
  on all "mkdir -p lanpo_jax/runs && tar xzf lanpo_jax.tgz -C lanpo_jax && cd lanpo_jax && python3 -m venv .venv && .venv/bin/pip install -q -e '.[tpu]'"
  if [ -n "$BUCKET" ]; then on all "cd lanpo_jax && mountpoint -q runs || gcsfuse --implicit-dirs ${BUCKET#gs://} runs"; fi
}

run() {
  on all "cd lanpo_jax && { nohup .venv/bin/python -m lanpo_jax.main --distributed $(printf '%q ' "$@") > run.log 2>&1 & echo \$! > run.pid; }"
}

ended() { # whether the run has ended, in success or in an error that starting again would repeat
  on 0 "tail -n 1 lanpo_jax/run.log | grep -E '^(Done in|Error: )'"
}

keep() {
  if [ -n "$DRY" ]; then create; install; run "$@"; status; ended; return; fi
  while true; do
    case "$(status)" in
    READY) ;;
    CREATING | STARTING | RESTARTING | REPAIRING) sleep "$POLL"; continue ;;
    NONE) create; install; run "$@" ;;
    *) delete || true; create; install; run "$@" ;; # PREEMPTED, TERMINATED, ...: the run goes on from its last save
    esac
    if ended; then break; fi
    sleep "$POLL"
  done
}

if [ "${1:-}" = --dry-run ]; then DRY=yes; shift; fi
COMMAND=${1:-}
shift || true
case "$COMMAND" in
create | delete | status | install | run | keep) "$COMMAND" "$@" ;;
log) on 0 "tail -n 50 -f lanpo_jax/run.log" ;;
stop) on all "kill -TERM \$(cat lanpo_jax/run.pid)" ;;
fetch) tpu scp --recurse "$NAME":lanpo_jax/"${1:?name the folder, e.g. fetch runs/first}" "$1" --worker=0 ;;
*) usage ;;
esac
