#!/usr/bin/env bash
# One TPU VM (any slice size) from creation to results. Needs gcloud, logged in, with a project set.
#
#   launch/tpu_vm.sh create            make the TPU VM
#   launch/tpu_vm.sh install           copy this checkout to all workers and install it there
#   launch/tpu_vm.sh run ARGS...       start `python -m lanpo_jax.main --distributed ARGS` on all workers, in the background
#   launch/tpu_vm.sh log               follow the first worker's output
#   launch/tpu_vm.sh fetch RUN         copy a run's folder back from the first worker
#   launch/tpu_vm.sh delete            remove the TPU VM (it costs money until then)
#
# Settings from the environment: TPU_NAME, ZONE, ACCELERATOR (e.g. v5litepod-32), RUNTIME.
# Not yet run on hardware by the authors; the Python side is tested on CPU meshes.
set -euo pipefail
NAME=${TPU_NAME:-lanpo}
ZONE=${ZONE:-us-west4-a}
ACCELERATOR=${ACCELERATOR:-v5litepod-8}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}
ROOT=$(cd "$(dirname "$0")/.." && pwd)

everywhere() { gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"; }

case "${1:-}" in
create)
  gcloud compute tpus tpu-vm create "$NAME" --zone="$ZONE" --accelerator-type="$ACCELERATOR" --version="$RUNTIME" ;;
install)
  archive=$(mktemp --suffix=.tgz)
  git -C "$ROOT" archive --format=tgz -o "$archive" HEAD
  gcloud compute tpus tpu-vm scp "$archive" "$NAME":lanpo_jax.tgz --zone="$ZONE" --worker=all
  rm -f "$archive"
  everywhere "mkdir -p lanpo_jax && tar xzf lanpo_jax.tgz -C lanpo_jax && cd lanpo_jax &&
    python3 -m venv .venv && .venv/bin/pip install -q -e '.[tpu]'" ;;
run)
  shift
  everywhere "cd lanpo_jax && nohup .venv/bin/python -m lanpo_jax.main --distributed $(printf '%q ' "$@") > run.log 2>&1 &" ;;
log)
  gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=0 --command="tail -n 50 -f lanpo_jax/run.log" ;;
fetch)
  gcloud compute tpus tpu-vm scp --recurse "$NAME":lanpo_jax/"$2" "$2" --zone="$ZONE" --worker=0 ;;
delete)
  gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" ;;
*)
  sed -n '2,12p' "$0"; exit 1 ;;
esac
