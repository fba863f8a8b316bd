#!/bin/bash
# GPU ranks on machines that only have ssh between them. The program, the configuration and the folders in it
# have to be at the same places on all of them.
#   GPUS=8 examples/deploy/hosts.sh my-run.yaml node1 node2
# The first host has rank 0. CPU ranks go through MPI instead:
#   mpirun --host node1:8,node2:8 deltatune train my-run.yaml --device cpu
set -eu
config=$1
shift
hosts=("$@")
gpus=${GPUS:-8}
port=${MASTER_PORT:-29500}

pids=()
for node in "${!hosts[@]}"; do
  for ((local = 0; local < gpus; ++local)); do
    variables="RANK=$((node * gpus + local)) WORLD_SIZE=$((${#hosts[@]} * gpus)) LOCAL_RANK=$local"
    variables+=" LOCAL_WORLD_SIZE=$gpus MASTER_ADDR=${hosts[0]} MASTER_PORT=$port"
    # -tt: Ctrl-C here reaches the ranks there. A rank that is lost ends the others; each says what it sees.
    ssh -tt -o BatchMode=yes "${hosts[node]}" \
      "cd $(printf %q "$PWD") && env $variables deltatune train $(printf %q "$config") --device cuda" </dev/null &
    pids+=($!)
  done
done

# 5 says that another rank was lost: that one's own code counts more.
code=0
for pid in "${pids[@]}"; do
  result=0
  wait "$pid" || result=$?
  if [[ $result -ne 0 && ($code -eq 0 || $result -ne 5) ]]; then code=$result; fi
done
exit $code
