#!/usr/bin/env bash
# A run on GPU nodes under SLURM; each process takes one node with all its GPUs:
#
#   sbatch --nodes=2 launch/slurm.sh --config=configs/qwen7b.py:model=DIR,data=FILE,eval=FILE --workdir=SHARED/RUN
#
# The environment .venv (pip install -e '.[gpu]') and --workdir lie on a file system that all nodes see. Two minutes
# before the time limit, and when preempted, SLURM sends SIGTERM: the step ends, the run is saved, the job is queued
# again and goes on. Not yet run on hardware by the authors.
#SBATCH --job-name=lanpo
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

srun --kill-on-bad-exit=1 .venv/bin/python -m lanpo_jax.main --distributed "$@" &
STEP=$!
requeue() {
  kill -TERM "$STEP" 2>/dev/null || true
  wait "$STEP" || true
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}
trap requeue TERM
wait "$STEP"
