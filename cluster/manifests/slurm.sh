#!/bin/bash
# A search on the nodes of a Slurm job. What follows the script's name is given to `automl search`:
#
#     sbatch --nodes=4 cluster/manifests/slurm.sh --space woof --trials 200 --gpus-per-trial 1
#
# Stopped by its time limit or by preemption, the job is requeued and resumes where it was.
#
#SBATCH --job-name=automl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
set -uo pipefail

job=$SLURM_JOB_ID
home=${SLURM_SUBMIT_DIR:-$PWD}
name=${AUTOML_NAME:-automl-$job}  # a job that is queued again keeps its number
storage=${AUTOML_STORAGE:-$home/searches}  # where all nodes see it
temporary=/tmp/automl-ray-$job  # /tmp/ray may belong to another user on a shared node
export PATH="${AUTOML_VENV:-$home/.venv}/bin:$PATH" RAY_USAGE_STATS_ENABLED=0
export AUTOML_CACHE=${AUTOML_CACHE:-${SLURM_TMPDIR:-/tmp}/automl-cache-$(id -u)}  # a disk of each node's own

# Who has the token may run anything on the nodes. It is in a file that its owner alone reads, and not in the
# environment, which Slurm shows.
token=$(mktemp "$home/.automl-token-$job-XXXXXX") || exit 1
od -An -tx1 -N32 /dev/urandom | tr -d ' \n' > "$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token

nodes=() steps=() search= why=

# Workers first: a worker without a head complains.
finish() {
    trap '' TERM INT USR1
    local step
    for ((i = ${#steps[@]} - 1; i >= 0; i--)); do
        step=${steps[i]}
        kill -TERM "$step" 2> /dev/null
        for ((waited = 0; waited < 30; waited++)); do kill -0 "$step" 2> /dev/null && sleep 1 || break; done
        kill -KILL "$step" 2> /dev/null
        wait "$step" 2> /dev/null
    done
    steps=()
    rm -f "$token"
    # Ray's logs stay where something went wrong.
    [ "$1" -eq 0 ] && srun --overlap --nodes="${#nodes[@]}" --ntasks-per-node=1 rm -rf "$temporary"
}
stop() {
    why=$1
    [ -n "$search" ] && kill -TERM "$search" 2> /dev/null  # it ends gracefully, and its trials resume later
}
trap 'finish $?' EXIT
trap 'stop limit' USR1   # of the time: Slurm says so three minutes before
trap 'stop person' TERM INT

fail() { echo "slurm.sh: $1" >&2; exit 1; }

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#nodes[@]}" -gt 0 ] || fail "Slurm names no nodes"
head=${nodes[0]}
# As another node sees it: a machine's own name may lead to its own loopback.
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[-1]}" getent ahostsv4 "$head" |
    awk 'NR == 1 {print $1}')
[ -n "$address" ] || fail "${nodes[-1]} does not know $head"

# Ports by the job's number: nodes may be shared by several jobs. Below 32768, from where the system gives its own;
# Ray's workers get those.
port=$((20000 + job % 4000)) dashboard=$((24000 + job % 4000)) client=$((28000 + job % 4000))

on() {
    local node=$1
    shift
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        ray start --block --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --temp-dir="$temporary" \
        --min-worker-port=0 --max-worker-port=0 "$@" &
    steps+=($!)
}

on "$head" --head --node-ip-address="$address" --port="$port" --ray-client-server-port="$client" \
    --dashboard-host=127.0.0.1 --dashboard-port="$dashboard"
for ((waited = 0; ; waited++)); do
    (exec 3<> "/dev/tcp/$address/$port") 2> /dev/null && break
    kill -0 "${steps[0]}" 2> /dev/null || fail "Ray's head on $head has ended"
    [ "$waited" -lt 120 ] || fail "Ray's head on $head does not answer"
    sleep 1
done
for node in "${nodes[@]:1}"; do on "$node" --address="$address:$port"; done

export RAY_ADDRESS=$address:$port
python - "${#nodes[@]}" <<'PYTHON' || fail "not all of the ${#nodes[@]} nodes have joined within five minutes"
import sys, time
import ray

ray.init(log_to_driver=False, logging_level="ERROR")
for _ in range(300):
    if sum(node["Alive"] for node in ray.nodes()) >= int(sys.argv[1]):
        sys.exit()
    time.sleep(1)
sys.exit(1)
PYTHON

if [ -z "$why" ]; then
    automl search --name "$name" --resume auto --storage "$storage" "$@" &
    search=$!
    wait "$search"
    status=$?
    # A signal ends the wait, not the search.
    while kill -0 "$search" 2> /dev/null; do wait "$search"; status=$?; done
else
    status=143
fi

if [ "$why" = limit ] && [ "$status" -ne 0 ]; then
    echo "slurm.sh: out of time; job $job is requeued and resumes search $name"
    finish 0
    scontrol requeue "$job"
fi
exit "$status"
