#!/bin/bash
#SBATCH --job-name=chain
#SBATCH --gres=gpu:1
#SBATCH --time=10
# Submits itself three times, each behind the one before.
step=${1:-1}
echo "step $step"
if [ "$step" -lt 3 ]; then
  next=$(sbatch --parsable --dependency=afterok:$SLURM_JOB_ID "$SLURM_SUBMIT_DIR/08_dependency_chain.sh" $((step + 1)))
  echo "next is ${next:+submitted}"
fi
